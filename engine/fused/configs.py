"""Tiles, warps and stages of the fused kernels, by plain conditions.

Pure, and without triton: the launches and the ahead-of-time checks of the binaries take their constants from
here. Nothing depends on how many rows a step has, or a row's result would too. Runs on: step thread.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from engine.kernels.launch import Constant, Launch, ceil_div, next_power_of_two

WIDEST_ROW: Final = 16384  # elements of a row that one program can hold without spilling
RECORD_WORDS: Final = 8  # of 32 bits, of a sequence in a step: see engine.execution.step_layout

_ACTIVATIONS_OF_PROGRAM: Final = 1024
_WORDS_OF_PROGRAM: Final = 2048  # of eight bytes
_SLICE: Final = 4096  # tokens of a vocabulary that stay in registers, noise and all
_SEARCH: Final = 4096  # tokens that a search looks at together
_ROWS_EXPANDED: Final = 256  # or entries of a block table, that a sequence's program writes together
_ROW_TILES_TOGETHER: Final = 8  # whose programs run side by side, so that they find columns in the cache
_MANY_COLUMNS: Final = 16384  # from here on wide tiles still give every multiprocessor one


# ---- inputs, norm, activation, copies ----------------------------------------------------------


@functools.cache
def step_inputs_launch(block_size: int, table_width: int) -> Launch:
    constants: dict[str, Constant] = {
        "TABLE_WIDTH": table_width,
        "BLOCK_SIZE": block_size,
        "RECORD_WORDS": RECORD_WORDS,
        "TILE": _ROWS_EXPANDED,
    }
    return Launch(constants)


@functools.cache
def norm_launch(width: int) -> Launch:
    """A program has a row of ``width`` elements whole."""
    assert 0 < width <= WIDEST_ROW
    tile = max(128, next_power_of_two(width))
    return Launch({"WIDTH": width, "TILE": tile}, num_warps=max(tile // 1024, 4))


@functools.cache
def activation_launch(width: int) -> Launch:
    return Launch({"WIDTH": width, "TILE": _ACTIVATIONS_OF_PROGRAM})


def activation_programs(width: int) -> int:
    """Programs that share a row."""
    return ceil_div(width, _ACTIVATIONS_OF_PROGRAM)


@functools.cache
def block_copy_launch(block_words: int) -> Launch:
    return Launch({"BLOCK_WORDS": block_words, "TILE": _WORDS_OF_PROGRAM}, num_warps=8)


def block_copy_programs(block_words: int) -> int:
    """Programs that share a block."""
    return ceil_div(block_words, _WORDS_OF_PROGRAM)


# ---- products ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """A program's part: ``rows`` x ``columns`` results, ``depth`` products of each at a time.

    ``programs`` of them are meant to share a multiprocessor.
    """

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int
    programs: int


def matmul_tile(element_bytes: int, num_columns: int) -> MatmulTile:
    """By the weight alone. With few rows the weight's way from memory is all, and loads must be in flight."""
    if element_bytes > 2:
        return MatmulTile(32, 64, 32, num_warps=4, num_stages=3, programs=2)
    if num_columns < _MANY_COLUMNS:
        return MatmulTile(64, 64, 64, num_warps=4, num_stages=6, programs=1)
    return MatmulTile(64, 128, 64, num_warps=4, num_stages=4, programs=1)


@functools.cache
def matmul_launch(element_bytes: int, num_columns: int, depth: int) -> Launch:
    tile = matmul_tile(element_bytes, num_columns)
    constants: dict[str, Constant] = {
        "COLUMNS": num_columns,
        "DEPTH": depth,
        "TILE_ROWS": tile.rows,
        "TILE_COLUMNS": tile.columns,
        "TILE_DEPTH": tile.depth,
        "TOGETHER": _ROW_TILES_TOGETHER,
    }
    return Launch(constants, tile.num_warps, tile.num_stages)


def matmul_programs(element_bytes: int, num_rows: int, num_columns: int) -> int:
    tile = matmul_tile(element_bytes, num_columns)
    return ceil_div(num_rows, tile.rows) * ceil_div(num_columns, tile.columns)


# ---- draws -------------------------------------------------------------------------------------


def _vocabulary_tile(vocab_size: int, most: int) -> int:
    return min(most, max(128, next_power_of_two(vocab_size)))


def num_slices(vocab_size: int) -> int:
    """Programs that share a row, where slices are looked at each by itself."""
    return ceil_div(vocab_size, _vocabulary_tile(vocab_size, _SLICE))


def _slices(vocab_size: int) -> dict[str, Constant]:
    count = num_slices(vocab_size)
    return {"NUM_SLICES": count, "SLICES": max(32, next_power_of_two(count))}


@functools.cache
def summarize_launch(vocab_size: int) -> Launch:
    return Launch({"VOCAB": vocab_size, "TILE": _vocabulary_tile(vocab_size, _SLICE)}, num_warps=8)


@functools.cache
def limits_launch(vocab_size: int) -> Launch:
    tile = _vocabulary_tile(vocab_size, _SEARCH)
    return Launch({"VOCAB": vocab_size, **_slices(vocab_size), "TILE": tile}, num_warps=32)


@functools.cache
def chances_launch(vocab_size: int) -> Launch:
    return Launch({"VOCAB": vocab_size, "TILE": _vocabulary_tile(vocab_size, _SLICE)}, num_warps=8)


@functools.cache
def pick_launch(vocab_size: int) -> Launch:
    return Launch(_slices(vocab_size), num_warps=1)
