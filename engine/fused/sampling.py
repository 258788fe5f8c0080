"""Draws the next token of each row on the device, so that a graph can hold it and no host has to look.

What temperature, top-k, top-p and min-p mean is as in ``engine.execution.sampler``, which stays the one for
rows with bias, bans, penalties, masks or log probabilities; only the random numbers are others. A draw is the
token with the most of logit / temperature + Gumbel noise (Gumbel 1954) among those that are kept, and the
noise depends on seed, position and token alone (``engine.fused.random_bits``): not on the row's neighbours,
its place in the batch or how often its request was preempted.

Four launches, by turns over slices of all rows and over rows: what is largest; what is kept; who has most in
each slice; who has most. Runs on: step thread; launches only.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.fused.configs import (
    chances_launch,
    limits_launch,
    num_slices,
    pick_launch,
    summarize_launch,
)
from engine.fused.nucleus import INFINITY, look, nucleus
from engine.fused.random_bits import draw_key, exponential
from engine.kernels.jit import jit

_COLDEST = tl.constexpr(1e-30)  # as in engine.execution.sampler
_LOG2_E = tl.constexpr(1.4426950408889634)


@jit()
def rate_of(temperature: tl.tensor) -> tl.tensor:
    """By what a distance is multiplied to be one of log2 probabilities."""
    return 1.0 / tl.maximum(temperature, _COLDEST) * _LOG2_E


@jit()
def summarize_kernel(
    logits: tl.tensor, tops: tl.tensor, lowests: tl.tensor, firsts: tl.tensor,
    VOCAB: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """Largest logit of a slice, the smallest, and the first token that has the largest.

    The smallest is -infinity if any is not finite. The grid is (rows, slices).
    """
    row = tl.program_id(0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tokens = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_token = tokens < VOCAB
    values = tl.load(logits + row.to(tl.int64) * VOCAB + tokens, mask=is_token, other=0.0)
    is_finite = tl.abs(values) < INFINITY
    values = tl.where(is_finite, values, 0.0)
    top = tl.max(tl.where(is_token, values, -INFINITY), 0)
    lowest = tl.min(tl.where(is_token, values, INFINITY), 0)
    tl.store(tops + place, top)
    tl.store(lowests + place, tl.where(tl.min(is_finite.to(tl.int32), 0) > 0, lowest, -INFINITY))
    tl.store(firsts + place, tl.min(tl.where(is_token & (values == top), tokens, VOCAB), 0))


@jit(varying=["temperature", "top_k", "top_p", "min_p"])
def limits_kernel(
    logits: tl.tensor, temperature: tl.tensor, top_k: tl.tensor, top_p: tl.tensor, min_p: tl.tensor,
    tops: tl.tensor, lowests: tl.tensor, firsts: tl.tensor,
    row_tops: tl.tensor, last_distances: tl.tensor, last_tokens: tl.tensor,
    VOCAB: tl.constexpr, NUM_SLICES: tl.constexpr, SLICES: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """What one row keeps, in the sense of ``engine.fused.nucleus``: the grid is rows.

    At temperature 0 that is the first of the likeliest; of a row that is not finite, nothing.
    """
    row = tl.program_id(0)
    parts = tl.arange(0, SLICES)
    is_part = parts < NUM_SLICES
    places = row * NUM_SLICES + parts
    slice_tops = tl.load(tops + places, mask=is_part, other=-INFINITY)
    top = tl.max(slice_tops, 0)
    lowest = tl.min(tl.load(lowests + places, mask=is_part, other=INFINITY), 0)
    first = tl.load(firsts + places, mask=is_part, other=VOCAB)
    last_distance = top * 0.0
    last_token = tl.min(tl.where(slice_tops == top, first, VOCAB), 0)
    warmth = tl.load(temperature + row)
    is_finite = lowest > -INFINITY
    if is_finite & (warmth > 0.0):
        last_distance, last_token = nucleus(
            logits + row.to(tl.int64) * VOCAB, top, lowest, rate_of(warmth),
            tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row), VOCAB, TILE,
        )  # fmt: skip
    tl.store(row_tops + row, top)
    tl.store(last_distances + row, tl.where(is_finite, last_distance, -INFINITY))
    tl.store(last_tokens + row, tl.where(is_finite, last_token, -1))


@jit(varying=["temperature", "min_p", "seeds", "positions"])
def chances_kernel(
    logits: tl.tensor, temperature: tl.tensor, min_p: tl.tensor, seeds: tl.tensor, positions: tl.tensor,
    row_tops: tl.tensor, last_distances: tl.tensor, last_tokens: tl.tensor,
    bests: tl.tensor, drawn: tl.tensor, VOCAB: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """Who of a slice's kept tokens has the most, and how much: log2 of weight plus noise.

    -infinity in a slice of which none is kept. The grid is (rows, slices).
    """
    row = tl.program_id(0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tokens = tl.program_id(1) * TILE + tl.arange(0, TILE)
    rate = rate_of(tl.load(temperature + row))
    distance, _ = look(
        logits + row.to(tl.int64) * VOCAB, tokens, tl.load(row_tops + row), rate, tl.load(min_p + row),
        tl.load(last_distances + row), tl.load(last_tokens + row), VOCAB, True,
    )  # fmt: skip
    best = row * 0.0 - INFINITY
    token = row * 0 + VOCAB
    if tl.min(distance, 0) < INFINITY:  # most slices of a row with a small nucleus have none of it
        key = draw_key(tl.load(seeds + row), tl.load(positions + row))
        chance = -distance * rate - tl.log2(exponential(key, tokens))
        best = tl.max(chance, 0)
        token = tl.min(tl.where(chance == best, tokens, VOCAB), 0)
    tl.store(bests + place, best)
    tl.store(drawn + place, token)


@jit()
def pick_kernel(
    bests: tl.tensor, drawn: tl.tensor, out: tl.tensor, NUM_SLICES: tl.constexpr, SLICES: tl.constexpr
) -> None:
    """The token of one row, or -1 if none is kept: the grid is rows."""
    row = tl.program_id(0)
    parts = tl.arange(0, SLICES)
    is_part = parts < NUM_SLICES
    chance = tl.load(bests + row * NUM_SLICES + parts, mask=is_part, other=-INFINITY)
    tokens = tl.load(drawn + row * NUM_SLICES + parts, mask=is_part, other=2**31 - 1)
    best = tl.max(chance, 0)
    token = tl.min(tl.where(chance == best, tokens, 2**31 - 1), 0)
    tl.store(out + row, tl.where(best > -INFINITY, token, -1).to(tl.int64))


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """One token a row of ``logits`` ``[R, V]`` float32, or -1 where the row is not finite: int64 ``[R]``.

    Beside them ``[R]``, on the same device: ``temperature`` (0: the likeliest, the first of equals),
    ``top_p`` (1: no limit) and ``min_p`` (0: none) float32; ``top_k`` (0: none) int32; ``seeds`` int64, all
    64 bits; ``positions`` of the tokens to be drawn, int32 or int64.
    """
    num_rows, vocab_size = logits.shape
    assert logits.dtype is torch.float32 and logits.is_contiguous()
    assert temperature.dtype is top_p.dtype is min_p.dtype is torch.float32
    assert top_k.dtype is torch.int32 and seeds.dtype is torch.int64
    settings = (temperature, top_k, top_p, min_p, seeds, positions)
    assert all(part.shape == (num_rows,) and part.is_contiguous() for part in settings)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    grid = (num_rows, num_slices(vocab_size))
    tops, lowests, bests = (logits.new_empty(grid) for _ in range(3))
    firsts, drawn = (torch.empty(grid, dtype=torch.int32, device=logits.device) for _ in range(2))
    row_tops, last_distances = (logits.new_empty(num_rows) for _ in range(2))
    last_tokens = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    limits = (row_tops, last_distances, last_tokens)
    summarize_kernel[grid](logits, tops, lowests, firsts, **summarize_launch(vocab_size).keywords())
    limits_kernel[(num_rows,)](
        logits, temperature, top_k, top_p, min_p, tops, lowests, firsts, *limits,
        **limits_launch(vocab_size).keywords(),
    )  # fmt: skip
    chances_kernel[grid](
        logits, temperature, min_p, seeds, positions, *limits, bests, drawn,
        **chances_launch(vocab_size).keywords(),
    )  # fmt: skip
    pick_kernel[(num_rows,)](bests, drawn, out, **pick_launch(vocab_size).keywords())
    return out
