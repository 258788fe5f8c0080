"""The register of fused kernels: binaries that models of the field would have launched.

Pure, and without triton: for checks of the binaries without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.fused.configs import (
    WIDEST_ROW,
    activation_launch,
    block_copy_launch,
    chances_launch,
    limits_launch,
    matmul_launch,
    matmul_tile,
    norm_launch,
    pick_launch,
    step_inputs_launch,
    summarize_launch,
)
from engine.kernels.launch import Arithmetic, KernelVariant

_PACKAGE = "engine.fused"
_ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
_WIDTHS = (576, 2048, 4096, 8192, WIDEST_ROW)
_WEIGHTS = ((4096, 4096), (28672, 4096), (49152, 576), (4096, 14336), (960, 100))  # columns, depth
_VOCABULARIES = (49152, 50257, 128256, 262144)
_BLOCK_WORDS = (11520, 262144, 20480)
_DRAWS = {
    "summarize": {"logits": "*fp32", "tops": "*fp32", "lowests": "*fp32", "firsts": "*i32"},
    "limits": {
        "logits": "*fp32", "temperature": "*fp32", "top_k": "*i32", "top_p": "*fp32", "min_p": "*fp32",
        "tops": "*fp32", "lowests": "*fp32", "firsts": "*i32",
        "row_tops": "*fp32", "last_distances": "*fp32", "last_tokens": "*i32",
    },
    "chances": {
        "logits": "*fp32", "temperature": "*fp32", "min_p": "*fp32", "seeds": "*i64", "positions": "*i64",
        "row_tops": "*fp32", "last_distances": "*fp32", "last_tokens": "*i32",
        "bests": "*fp32", "drawn": "*i32",
    },
    "pick": {"bests": "*fp32", "drawn": "*i32", "out": "*i64"},
}  # fmt: skip


def variants() -> list[KernelVariant]:
    """All of them; a name is kernel, dtype where there are several, and sizes."""
    found = [variant for vocab_size in _VOCABULARIES for variant in _draws(vocab_size)]
    found += [_block_copy(words) for words in _BLOCK_WORDS]
    found += [_step_inputs(block_size) for block_size in (16, 48)]
    for dtype in _ELEMENT_BYTES:
        for width in _WIDTHS:
            found += [_norm(dtype, width, fused=fused) for fused in (False, True)]
            found.append(_activation(dtype, width))
        for columns, depth in _WEIGHTS:
            found += [_matmul(dtype, columns, depth, biased=biased) for biased in (False, True)]
    return found


def _norm(dtype: str, width: int, *, fused: bool) -> KernelVariant:
    arguments = {
        "hidden": "*fp32", "delta": f"*{dtype}" if fused else None, "weight": "*fp32", "out": f"*{dtype}",
        "eps": "fp32",
    }  # fmt: skip
    name = f"{'add-norm' if fused else 'norm'}-{dtype}-{width}"
    return KernelVariant(
        name,
        f"{_PACKAGE}.norm:norm_kernel",
        arguments,
        norm_launch(width),
        side_by_side=2 if width <= 8192 else 1,
    )


def _activation(dtype: str, width: int) -> KernelVariant:
    arguments = {"gate_up": f"*{dtype}", "out": f"*{dtype}"}
    kernel = f"{_PACKAGE}.activation:silu_and_mul_kernel"
    return KernelVariant(
        f"swiglu-{dtype}-{width}", kernel, arguments, activation_launch(width), side_by_side=8
    )


def _block_copy(words: int) -> KernelVariant:
    arguments = {"pool": "*i64", "sources": "*i64", "targets": "*i64"}
    kernel = f"{_PACKAGE}.block_copy:copy_blocks_kernel"
    return KernelVariant(f"block-copy-{words}", kernel, arguments, block_copy_launch(words), side_by_side=4)


def _step_inputs(block_size: int) -> KernelVariant:
    arguments = {
        "words": "*i32", "kept_tables": "*i32", "token_ids": "*i64", "positions": "*i64",
        "slot_mapping": "*i32", "query_start": "*i32", "context_start": "*i32", "seq_lens": "*i32",
        "block_tables": "*i32", "records_at": "i32", "token_ids_at": "i32",
    }  # fmt: skip
    kernel = f"{_PACKAGE}.step_inputs:step_inputs_kernel"
    launch = step_inputs_launch(block_size, 8192)
    return KernelVariant(f"step-inputs-{block_size}", kernel, arguments, launch, side_by_side=8)


def _matmul(dtype: str, columns: int, depth: int, *, biased: bool) -> KernelVariant:
    value, element_bytes = f"*{dtype}", _ELEMENT_BYTES[dtype]
    arguments = {
        "x": value, "weight": value, "bias": value if biased else None, "out": value, "num_rows": "i32",
    }  # fmt: skip
    tile = matmul_tile(element_bytes, columns)
    return KernelVariant(
        f"matmul-{dtype}-{columns}x{depth}{'-bias' if biased else ''}",
        f"{_PACKAGE}.matmul:fixed_tile_matmul_kernel",
        arguments,
        matmul_launch(element_bytes, columns, depth),
        Arithmetic.IEEE_FLOAT32 if dtype == "fp32" else Arithmetic.TENSOR_CORES,
        tile.rows,
        tile.programs,
    )


def _draws(vocab_size: int) -> Iterator[KernelVariant]:
    launches = {
        "summarize": summarize_launch, "limits": limits_launch, "chances": chances_launch, "pick": pick_launch
    }  # fmt: skip
    for name, launch in launches.items():
        yield KernelVariant(
            f"{name}-{vocab_size}", f"{_PACKAGE}.sampling:{name}_kernel", _DRAWS[name], launch(vocab_size),
            side_by_side=1 if name == "limits" else 3,
        )  # fmt: skip
