"""Faults put into a copy of the sources, each of which a check beside must find. Only ``make test-slow``
runs them.

A check that cannot fail proves nothing: a wrong mask at a block's edge, an offset of 32 bits, a spill, a
product without tensor cores, tf32 in float32, and a reduction that depends on neighbours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.attention.triton.variants import variants
from tests.support.compiled_kernels import ROOT, faults, run_compiler

pytestmark = pytest.mark.slow
SOURCES = ROOT / "engine" / "attention" / "triton"
REGISTRY = "engine.attention.triton.variants:variants"
VARIANTS = {variant.name: variant for variant in variants()}


@dataclass(frozen=True)
class Mutation:
    """In ``file`` each old text becomes the new one beside it."""

    file: str
    changes: tuple[tuple[str, str], ...]


def mutated(mutation: Mutation, root: Path) -> Path:
    """A copy of the project with a fault in it."""
    for package in ("engine", "tiering", "tests"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    path = root / "engine" / "attention" / "triton" / mutation.file
    source = path.read_text()
    for old, new in mutation.changes:
        assert old in source, f"{mutation.file} has changed; so must the mutation"
        source = source.replace(old, new)
    path.write_text(source)
    return root


ORACLE = "test_attention_backend.py::test_a_ragged_batch_agrees_with_the_oracle"
WINDOW = "test_attention_backend.py::test_a_sliding_window"
FAR = "test_attention_rotate_store.py::test_a_pool_may_have_more_elements_than_32_bits_count"
PADDING = "test_attention_backend.py::test_padding_reads_and_stores_nothing_and_gives_zeros"
INTERPRETED = {
    "a row sees the token after it": (
        Mutation("extend.py", (("positions + 1, length)", "positions + 2, length)"),)), ORACLE,
    ),
    "a decode misses its last token": (
        Mutation("decode.py", (("tl.int32) + end", "tl.int32) + end - 1"),)), ORACLE,
    ),
    "a slot past the length is read": (
        Mutation("tiles.py", (("known = tokens < limit", "known = tokens <= limit"),)), ORACLE,
    ),
    "tiles that all see reach a token too far": (
        Mutation("extend.py", (("first_position + 1, length)", "first_position + 2, length)"),)), ORACLE,
    ),
    "the window is a token too long": (
        Mutation("extend.py", (("(positions - WINDOW + 1, 0)", "(positions - WINDOW, 0)"),)), WINDOW,
    ),
    "a decode's window is a token too short": (
        Mutation("splits.py", (("lengths - WINDOW", "lengths - WINDOW + 1"),)), WINDOW,
    ),
    "offsets of loads have 32 bits": (
        Mutation("tiles.py", (("blocks.to(tl.int64) * BLOCK_STRIDE", "blocks * BLOCK_STRIDE"),)), FAR,
    ),
    "offsets of stores have 32 bits": (
        Mutation("rotate_store.py", (("(slot // BLOCK_SIZE).to(tl.int64)", "slot // BLOCK_SIZE"),)), FAR,
    ),
    "padding is stored": (Mutation("rotate_store.py", ((" & (slot >= 0)", ""),)), PADDING),
    "a piece is lost": (
        Mutation("combine.py", (("known = pieces < end", "known = pieces < end - 1"),)),
        "test_attention_backend.py::test_long_contexts_are_split_and_put_together",
    ),
    "tiles are counted from a window's start": (
        Mutation("extend.py", (("WINDOW + 1, 0) // TILE * TILE", "WINDOW + 1, 0)"),)),
        "test_attention_backend.py::test_chunk_splits_do_not_matter_to_the_batch_invariant",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", INTERPRETED)
def test_the_interpreter_finds(fault: str, tmp_path: Path) -> None:
    mutation, test = INTERPRETED[fault]
    root = mutated(mutation, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(root), "TRITON_INTERPRET": "1"}
    environment.pop("TIDEGATE_SLOW", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", f"tests/kernels/{test}"],
        cwd=root, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout[-2000:]


SCORES = ("tl.dot(query, tl.trans(keys)", "tl.dot(query.to(tl.float32), tl.trans(keys).to(tl.float32)")
SUMS = ("tl.dot(weights.to(values.dtype), values", "tl.dot(weights, values.to(tl.float32)")
COMPILED = {
    "spills: ": (
        Mutation("configs.py", (("_large_tile(max(128, least), tokens)", "Tile(128, 128, 4, 3, 1)"),)),
        "extend-bf16-d128-g4-many",
    ),
    "registers are too many": (
        Mutation("configs.py", (("tokens, 4, 3, 3)", "tokens, 2, 3, 3)"),)),
        "decode-bf16-d128-g4",
    ),
    "no \\bmma\\.sync": (Mutation("tiles.py", (SCORES, SUMS)), "decode-bf16-d128-g4"),
    "2 products without tensor cores": (Mutation("tiles.py", (SCORES,)), "extend-bf16-d64-g4-few"),
    "tf32 in float32": (
        Mutation("tiles.py", (('input_precision="ieee"', 'input_precision="tf32"'),)),
        "extend-fp32-d128-g4-few",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", COMPILED)
def test_the_compiler_shows(fault: str, tmp_path: Path) -> None:
    mutation, name = COMPILED[fault]
    (compiled,) = run_compiler([(REGISTRY, name, 90)], mutated(mutation, tmp_path))
    found = faults(VARIANTS[name], 90, compiled)
    assert any(fault in one for one in found), found
