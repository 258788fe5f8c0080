"""Which tile, how many warps and stages each attention kernel is launched with, by plain conditions.

Pure, and without triton: the launches and the ahead-of-time checks of the binaries take their constants
from here. Nothing is tuned at run time: a search in a serving process costs seconds, and one that ends
otherwise on the next start gives other bits. Where a model fixes a number it is a constant of the kernel.
Runs on: step thread.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from engine.kernels.launch import Constant, Launch, ceil_div, next_power_of_two

_LOG2_E = 1.4426950408889634
_MIN_DOT_ROWS = 16  # the smallest left factor that tensor cores take
_ROWS_OF_WARPGROUP = 64  # what Hopper's and Blackwell's own instructions multiply at once
_ROWS_OF_PREFILL = 1024  # from here on the largest tile has little padding
_WAVES = 4  # of programs, one after the other, where there are many
_LEAST_SPLIT = 256  # tokens: below that, merging costs more than a second program brings
_LEAST_VECTOR = 32  # elements: one a thread of a warp
_HEADS_OF_PROGRAM = 16  # in rotate_store
_SPLITS_OF_PASS = 8  # partial results that combine reads at once


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What a model and its pool fix for the kernels. Strides are in elements of the pool's layer view
    ``[N, 2, Hkv, block_size, D]``; a slot's D elements are neighbours. ``window`` 0 is none. Devices from
    Hopper on have instructions for whole warpgroups, which need fewer registers.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    element_bytes: int
    block_stride: int
    part_stride: int
    head_stride: int
    slot_stride: int
    window: int = 0
    has_warpgroups: bool = True

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def padded_dim(self) -> int:
        return max(_MIN_DOT_ROWS, next_power_of_two(self.head_dim))

    def paging(self) -> dict[str, Constant]:
        """Where K and V of a position are, and the scale of scores: to base 2, in which softmax is taken."""
        return {
            "HEADS": self.num_heads,
            "GROUP": self.group_size,
            "HEAD_DIM": self.head_dim,
            "PADDED_DIM": self.padded_dim,
            "BLOCK_SIZE": self.block_size,
            "BLOCK_STRIDE": self.block_stride,
            "PART_STRIDE": self.part_stride,
            "HEAD_STRIDE": self.head_stride,
            "SLOT_STRIDE": self.slot_stride,
            "SCALE": _LOG2_E / math.sqrt(self.head_dim),
        }


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's part: ``rows`` (a group's heads times positions) over ``tokens`` of context at a time.

    ``programs`` of them are meant to share a multiprocessor.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int
    programs: int


def _least_rows(shape: KernelShape) -> int:
    return max(_MIN_DOT_ROWS, next_power_of_two(shape.group_size))


def _tokens(shape: KernelShape) -> int:
    """As many as registers hold beside the sums; in float32 both factors are there too."""
    if shape.element_bytes > 2:
        return 16
    return 64 if shape.padded_dim <= 128 else 32


def _large_tile(rows: int, tokens: int) -> Tile:
    """A warpgroup for each 64 rows, which is where it keeps their sums."""
    return Tile(rows, tokens, 4, 3, 2) if rows <= _ROWS_OF_WARPGROUP else Tile(rows, tokens, 8, 3, 1)


def _smallest_tile(shape: KernelShape) -> Tile:
    """The fewest rows that there are, and enough programs side by side to keep loads in flight."""
    rows, tokens = _least_rows(shape), _tokens(shape)
    if shape.element_bytes <= 2:
        return Tile(rows, tokens, 4, 3, 3) if rows == _MIN_DOT_ROWS else _large_tile(rows, tokens)
    return Tile(rows, tokens, 4, 3, 2) if shape.padded_dim <= 128 else Tile(rows, tokens, 8, 3, 1)


# ---- decode ------------------------------------------------------------------------------------


def decode_tile(shape: KernelShape) -> Tile:
    """Decode is bound by memory, and has no more rows than a group has heads."""
    return _smallest_tile(shape)


@functools.cache
def decode_launch(shape: KernelShape) -> Launch:
    tile = decode_tile(shape)
    constants = {**shape.paging(), "ROWS": tile.rows, "TILE": tile.tokens}
    return Launch(constants, tile.num_warps, tile.num_stages, tile.programs)


def programs_at_once(shape: KernelShape, num_multiprocessors: int) -> int:
    """How many programs of decode a device runs side by side for one KV head."""
    return max(1, num_multiprocessors * decode_tile(shape).programs // shape.num_kv_heads)


def split_budget(at_once: int, num_seqs: int) -> int:
    """Into how many pieces a step's contexts are cut, beside one a sequence.

    Few sequences' are cut once around the device; those of many into shorter pieces, so that the device is
    not half empty while the last ones run.
    """
    return at_once if num_seqs <= at_once // _WAVES else at_once * _WAVES


def max_pieces(at_once: int, max_num_seqs: int) -> int:
    """The most that contexts can be cut into, whatever the step."""
    return at_once * _WAVES + max_num_seqs


@functools.cache
def splits_launch(shape: KernelShape, max_num_seqs: int, at_once: int) -> Launch:
    constants = {
        "MAX_SEQS": max(_LEAST_VECTOR, next_power_of_two(max_num_seqs)),
        "CAPACITY": max(_LEAST_VECTOR, next_power_of_two(max_pieces(at_once, max_num_seqs))),
        "LEAST": _LEAST_SPLIT,
        "TILE": decode_tile(shape).tokens,
        "WINDOW": shape.window,
    }
    return Launch(constants)


@functools.cache
def combine_launch(shape: KernelShape) -> Launch:
    constants = {
        "HEADS": shape.num_heads,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": shape.padded_dim,
        "SPLITS": _SPLITS_OF_PASS,
    }
    return Launch(constants, num_warps=1 if shape.padded_dim <= 128 else 2, programs=16)


@functools.cache
def merge_launch(shape: KernelShape) -> Launch:
    constants = {"HEADS": shape.num_heads, "HEAD_DIM": shape.head_dim, "PADDED_DIM": shape.padded_dim}
    return Launch(constants, num_warps=1, programs=16)


# ---- extend ------------------------------------------------------------------------------------


def extend_tile(shape: KernelShape, mean_rows: int) -> Tile:
    """By the rows of a mean sequence of the step: a tile that is mostly padding computes mostly nothing."""
    rows, least = mean_rows * shape.group_size, _least_rows(shape)
    if shape.element_bytes > 2 or rows < _ROWS_OF_WARPGROUP:
        return _smallest_tile(shape)
    tokens = _tokens(shape) if shape.has_warpgroups else 32
    if shape.padded_dim > 128:
        return Tile(max(64, least), tokens, 8, 3, 1)
    if rows < _ROWS_OF_PREFILL or not shape.has_warpgroups:
        return _large_tile(max(64, least), tokens)
    return _large_tile(max(128, least), tokens)


def invariant_tile(shape: KernelShape) -> Tile:
    """One for everything, decodes included, where bits may depend on the row alone."""
    return _smallest_tile(shape)


def query_block(shape: KernelShape, tile: Tile) -> int:
    """Positions of one sequence that a program of ``tile`` computes."""
    return tile.rows // shape.group_size


@functools.cache
def extend_launch(shape: KernelShape, tile: Tile, *, batch_invariant: bool = False) -> Launch:
    """``batch_invariant``: every tile of context takes the same instructions, whatever rows are beside it."""
    constants = {
        **shape.paging(),
        "ROWS": tile.rows,
        "QUERY_BLOCK": query_block(shape, tile),
        "TILE": tile.tokens,
        "WINDOW": shape.window,
        "INVARIANT": batch_invariant,
    }
    return Launch(constants, tile.num_warps, tile.num_stages, tile.programs, fuse=not batch_invariant)


# ---- rotate and store --------------------------------------------------------------------------


@functools.cache
def rotate_store_launch(shape: KernelShape) -> Launch:
    constants = {
        "HEADS": shape.num_heads,
        "KV_HEADS": shape.num_kv_heads,
        "HALF": shape.head_dim // 2,
        "PADDED_HALF": next_power_of_two(shape.head_dim // 2),
        "HEADS_OF_PROGRAM": _HEADS_OF_PROGRAM,
        "BLOCK_SIZE": shape.block_size,
        "BLOCK_STRIDE": shape.block_stride,
        "PART_STRIDE": shape.part_stride,
        "HEAD_STRIDE": shape.head_stride,
        "SLOT_STRIDE": shape.slot_stride,
    }
    return Launch(constants, programs=8)


def rotate_store_programs(shape: KernelShape) -> int:
    """Programs that share a row's heads, Q, K and V together."""
    return ceil_div(shape.num_heads + 2 * shape.num_kv_heads, _HEADS_OF_PROGRAM)
