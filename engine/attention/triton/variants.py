"""The register of attention kernels: binaries that models of the field would have launched.

Pure, and without triton. Every kernel is there with every head size and dtype that it knows, in the tile
that ``engine.attention.triton.configs`` chooses, for checks of the binaries without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from engine.attention.triton.configs import (
    KernelShape,
    Tile,
    combine_launch,
    decode_launch,
    decode_tile,
    extend_launch,
    extend_tile,
    invariant_tile,
    merge_launch,
    programs_at_once,
    rotate_store_launch,
    splits_launch,
)
from engine.kernels.launch import CAPABILITIES, Arithmetic, KernelVariant

_PACKAGE = "engine.attention.triton"
_ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
_MULTIPROCESSORS = 132  # of an H200
_MAX_NUM_SEQS = 256
_NUM_LAYERS = 32
_KV_HEADS = 8
_MEAN_ROWS = {"few": 4, "some": 64, "many": 8192}  # of a sequence in a step, for each tile of extend


def shape_of(
    dtype: str, head_dim: int, group_size: int, block_size: int = 16, window: int = 0
) -> KernelShape:
    """As in a contiguous pool of a model with ``group_size`` query heads for each of eight KV heads."""
    head_stride = block_size * head_dim
    return KernelShape(
        num_heads=_KV_HEADS * group_size,
        num_kv_heads=_KV_HEADS,
        head_dim=head_dim,
        block_size=block_size,
        element_bytes=_ELEMENT_BYTES[dtype],
        block_stride=_NUM_LAYERS * 2 * _KV_HEADS * head_stride,
        part_stride=_KV_HEADS * head_stride,
        head_stride=head_stride,
        slot_stride=head_dim,
        window=window,
    )


def _arithmetic(dtype: str) -> Arithmetic:
    return Arithmetic.IEEE_FLOAT32 if dtype == "fp32" else Arithmetic.TENSOR_CORES


def _decode(dtype: str, name: str, shape: KernelShape) -> KernelVariant:
    value = f"*{dtype}"
    arguments = {
        "query": value, "kv": value, "block_tables": "*i32", "table_stride": "i32", "work": "*i32",
        "out": value, "lse": None, "partial_out": "*fp32", "partial_lse": "*fp32",
    }  # fmt: skip
    tile = decode_tile(shape)
    return KernelVariant(
        f"decode-{name}", f"{_PACKAGE}.decode:decode_kernel", arguments, decode_launch(shape),
        _arithmetic(dtype), tile.rows,
    )  # fmt: skip


def _extend(
    dtype: str, name: str, shape: KernelShape, tile: Tile, *, invariant: bool = False
) -> KernelVariant:
    value = f"*{dtype}"
    arguments = {
        "query": value, "kv": value, "query_start": "*i32", "context_start": "*i32", "seq_lens": "*i32",
        "block_tables": "*i32", "table_stride": "i32", "first_seq": "i32", "num_seqs": "i32",
        "out": value, "lse": None,
    }  # fmt: skip
    launch = extend_launch(shape, tile, batch_invariant=invariant)
    return KernelVariant(
        f"extend-{name}", f"{_PACKAGE}.extend:extend_kernel", arguments, launch,
        _arithmetic(dtype), tile.rows,
    )  # fmt: skip


def _rotate_store(dtype: str, name: str, shape: KernelShape) -> KernelVariant:
    value = f"*{dtype}"
    arguments = {
        "qkv": value, "cos": "*fp32", "sin": "*fp32", "slot_mapping": "*i32", "query": value, "kv": value,
    }  # fmt: skip
    return KernelVariant(
        f"rotate-store-{name}", f"{_PACKAGE}.rotate_store:rotate_store_kernel", arguments,
        rotate_store_launch(shape),
    )  # fmt: skip


def _merging(dtype: str, name: str, shape: KernelShape) -> Iterator[KernelVariant]:
    value = f"*{dtype}"
    combine: Mapping[str, str | None] = {
        "partial_out": "*fp32", "partial_lse": "*fp32", "starts": "*i32", "out": value, "lse": None,
    }  # fmt: skip
    merge = {"out": value, "lse": "*fp32", "other_out": value, "other_lse": "*fp32"}
    module = f"{_PACKAGE}.combine"
    yield KernelVariant(f"combine-{name}", f"{module}:combine_kernel", combine, combine_launch(shape))
    yield KernelVariant(f"merge-{name}", f"{module}:merge_kernel", merge, merge_launch(shape))


def _splits(name: str, shape: KernelShape) -> KernelVariant:
    arguments = {
        "seq_lens": "*i32", "num_seqs": "i32", "budget": "i32", "work": "*i32", "starts": "*i32",
    }  # fmt: skip
    launch = splits_launch(shape, _MAX_NUM_SEQS, programs_at_once(shape, _MULTIPROCESSORS))
    return KernelVariant(f"splits-{name}", f"{_PACKAGE}.splits:splits_kernel", arguments, launch)


def _models() -> Iterator[tuple[str, int, int, int]]:
    """dtype, head size, group size and window of models that the register stands for."""
    for head_dim in (64, 80, 96, 128, 256):
        yield "bf16", head_dim, 1, 0
        yield "bf16", head_dim, 4, 0
        yield "fp32", head_dim, 4, 0
    yield "fp16", 128, 8, 0
    yield "bf16", 64, 4, 4096
    yield "bf16", 128, 4, 4096
    yield "bf16", 256, 2, 4096
    yield "bf16", 64, 3, 0  # groups that do not fill a tile
    yield "bf16", 128, 7, 0


def variants() -> list[KernelVariant]:
    """All of them; a name is kernel, dtype, head size (``d``), group size (``g``), and what is special."""
    found: dict[str, KernelVariant] = {}
    for dtype, head_dim, group_size, window in _models():
        name = f"{dtype}-d{head_dim}-g{group_size}" + ("-window" if window else "")
        shape = shape_of(dtype, head_dim, group_size, window=window)
        for variant in _of_shape(dtype, name, shape):
            assert variant.name not in found
            found[variant.name] = variant
    return [*found.values(), *_with_logs(found)]


def _with_logs(found: Mapping[str, KernelVariant]) -> Iterator[KernelVariant]:
    """Kernels that tell the log of all weights besides, as who merges needs it."""
    for name, variant in found.items():
        if "bf16-d128-g4" in name and variant.arguments.get("lse", "") is None:
            yield replace(variant, name=f"{name}-lse", arguments={**variant.arguments, "lse": "*fp32"})


def _of_shape(dtype: str, name: str, shape: KernelShape) -> Iterator[KernelVariant]:
    tiles: dict[Tile, tuple[str, tuple[int, ...]]] = {}
    for word, rows in _MEAN_ROWS.items():
        hopper, ampere = (
            extend_tile(replace(shape, has_warpgroups=has_them), rows) for has_them in (True, False)
        )
        tiles.setdefault(hopper, (word, CAPABILITIES if ampere == hopper else (90, 100)))
        tiles.setdefault(ampere, (f"{word}-ampere", (80,)))
    for tile, (word, capabilities) in tiles.items():
        yield replace(_extend(dtype, f"{name}-{word}", shape, tile), capabilities=capabilities)
    yield _extend(dtype, f"{name}-invariant", shape, invariant_tile(shape), invariant=True)
    yield _splits(name, shape)
    if not shape.window:  # the rest knows nothing of windows
        yield _decode(dtype, name, shape)
        yield _rotate_store(dtype, name, shape)
        yield from _merging(dtype, name, shape)
