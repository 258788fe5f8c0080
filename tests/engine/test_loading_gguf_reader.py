"""The lean reader against the library's own, on the built-in file, on lists of every kind, and on stumps."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFEndian, GGUFReader, GGUFValueType

from engine.config import ConfigError
from engine.loading.checkpoint import find_builtin_model
from engine.loading.gguf_file import open_file
from engine.loading.gguf_reader import LeanReader

LISTS = {
    "of.integers": [3, -5, 2**31 - 1],
    "of.floats": [0.5, -1.25],
    "of.truths": [True, False, True],
    "of.strings": ["", "é", "word " * 1000],
}


def is_list_of_strings(types: list[GGUFValueType]) -> bool:
    return types == [GGUFValueType.ARRAY, GGUFValueType.STRING]


def assert_same(lean: LeanReader, usual: GGUFReader) -> None:
    """All but the lists of strings."""
    assert list(lean.fields) == list(usual.fields)
    for name, field in usual.fields.items():
        found = lean.fields[name]
        assert (found.offset, found.types) == (field.offset, field.types)
        assert found.contents() == ([] if is_list_of_strings(field.types) else field.contents()), name
    assert [tensor.name for tensor in lean.tensors] == [tensor.name for tensor in usual.tensors]
    for one, other in zip(lean.tensors, usual.tensors, strict=True):
        assert (one.tensor_type, one.data_offset) == (other.tensor_type, other.data_offset)
        assert np.array_equal(one.data, other.data)


def write(path: Path, endianess: GGUFEndian = GGUFEndian.LITTLE) -> Path:
    writer = gguf.GGUFWriter(path, "llama", endianess=endianess)
    for name, values in LISTS.items():
        writer.add_array(name, values)
        writer.add_uint32(f"after.{name}", 7)
    writer.add_tensor("weight", np.arange(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_unreadable(path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as a GGUF file"):
        open_file(path, "auto", 0)


def test_the_built_in_file_reads_the_same() -> None:
    path = find_builtin_model()
    usual = GGUFReader(path)
    assert sum(is_list_of_strings(field.types) for field in usual.fields.values()) >= 2  # words, merges
    assert_same(LeanReader(path), usual)


@pytest.mark.parametrize("endianess", list(GGUFEndian))
def test_lists_of_every_kind_read_the_same(tmp_path: Path, endianess: GGUFEndian) -> None:
    path = write(tmp_path / "lists.gguf", endianess)
    assert_same(LeanReader(path), GGUFReader(path))


def test_a_file_that_ends_within_its_lists_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "lists.gguf")
    content = path.read_bytes()
    for kept in range(0, content.index(b"after.of.strings"), 13):
        path.write_bytes(content[:kept])
        assert_unreadable(path)


def test_a_list_with_more_strings_than_the_file_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "lists.gguf")
    content = bytearray(path.read_bytes())
    at = content.index(b"of.strings") + len(b"of.strings") + 8  # past the kind of field and of items
    content[at : at + 8] = (2**60).to_bytes(8, "little")
    path.write_bytes(content)
    assert_unreadable(path)
