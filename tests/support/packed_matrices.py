"""Random quantized matrices, and models that a GGUF file holds quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from engine.packed.layout import GROUP, QuantizedMatrix
from engine.packed.products import has_byte_products
from tests.support.gguf_files import gguf_parts

OF_BYTES = [False, True] if has_byte_products() else [False]  # the kinds of products that this CPU has


def random_matrix(bits: int, num_outputs: int, num_inputs: int, seed: int = 0) -> QuantizedMatrix:
    random = np.random.default_rng(seed)
    shape = (num_outputs, num_inputs // GROUP)
    return QuantizedMatrix(
        bits,
        random.integers(0, 2**32, (*shape, bits), dtype=np.uint32),
        random.normal(0, 0.02, shape).astype(np.float16),
        random.normal(0, 0.1, shape).astype(np.float16),
    )


def quantized(values: npt.NDArray[np.float32], kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Rows of blocks, as a file has them."""
    blocks: npt.NDArray[np.uint8] = gguf.quants.quantize(values, kind)
    return blocks


def write_quantized(path: Path, model: Any, kinds: dict[str, GGMLQuantizationType]) -> Path:
    """A GGUF file whose matrices are of the type that ``kinds`` gives their name, or that it gives ``""``."""
    metadata, tensors = gguf_parts(model)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(key, value)
    for name, values in tensors.items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
            continue
        kind = kinds.get(name, kinds[""])
        writer.add_tensor(name, quantized(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
