"""Which tokens of a row top-k, top-p and min-p keep, found without sorting it.

A token's *distance* is how far its logit is below the row's largest. Tokens stand in order of distance, and
those equally far in order of their ids; what is kept is a beginning of that order: all nearer than
``last_distance``, and those just there up to ``last_token``. What the three mean is as in
``engine.execution.sampler``: min-p first, then top-k, then top-p of what is left.

``last_distance`` is found by bisection over distances that occur, as in FlashInfer's renormalizing kernels
(Ye et al. 2025): a pass over the row counts, or weighs, what is within a pivot, and moves one end of the
interval to the next distance beyond it. So each pass halves the interval and drops at least one distance, and
the last one left is exact. Every sum is over the whole row in one order, so it cannot shrink as pivots grow.
"""

from __future__ import annotations

import triton.language as tl

from engine.kernels.jit import jit

INFINITY = tl.constexpr(float("inf"))
_FARTHEST = tl.constexpr(3.4028234663852886e38)  # the largest finite float32


@jit()
def is_limited(top_k: tl.tensor, VOCAB: tl.constexpr) -> tl.tensor:
    """Whether top-k excludes anything."""
    return (top_k > 0) & (top_k < VOCAB)


@jit()
def weigh(distance: tl.tensor, rate: tl.tensor) -> tl.tensor:
    """Probability as a part of the likeliest token's. ``rate``: log2(e) / temperature."""
    return tl.exp2(-distance * rate)


@jit()
def look(
    row: tl.tensor, tokens: tl.tensor, top: tl.tensor, rate: tl.tensor, min_p: tl.tensor,
    last_distance: tl.tensor, last_token: tl.tensor, VOCAB: tl.constexpr, WEIGHED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Distance and amount of ``tokens``: infinity and 0 of those beyond the limits or the vocabulary.

    The amount is the weight, of which min-p takes what is too small; or 1, if they are not ``WEIGHED``.
    """
    is_token = tokens < VOCAB
    logits = tl.load(row + tokens, mask=is_token, other=0.0)
    distance = tl.where(is_token, top - logits, INFINITY)
    kept = (distance < last_distance) | ((distance == last_distance) & (tokens <= last_token))
    if WEIGHED:
        amount = weigh(distance, rate)
        kept = kept & (amount >= min_p)
    else:
        amount = tl.where(is_token, 1.0, 0.0)
    return tl.where(kept, distance, INFINITY), tl.where(kept, amount, 0.0)


@jit()
def total_weight(
    row: tl.tensor, top: tl.tensor, rate: tl.tensor, min_p: tl.tensor,
    last_distance: tl.tensor, last_token: tl.tensor, VOCAB: tl.constexpr, TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Of all within the limits."""
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, VOCAB, TILE):
        tokens = start + tl.arange(0, TILE)
        _, amount = look(row, tokens, top, rate, min_p, last_distance, last_token, VOCAB, True)
        total += amount
    return tl.sum(total, 0)


@jit()
def reach(
    row: tl.tensor, top: tl.tensor, rate: tl.tensor, min_p: tl.tensor,
    last_distance: tl.tensor, last_token: tl.tensor, target: tl.tensor, available: tl.tensor,
    VOCAB: tl.constexpr, TILE: tl.constexpr, WEIGHED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The least distance within which there is ``target``, and how much there is.

    ``available``: how much there is within the limits, not less than ``target``.
    """
    low = last_distance * 0.0
    high = last_distance
    while low < high:
        middle = low + (high - low) * 0.5
        middle = tl.where(middle < high, middle, low)
        total = tl.zeros([TILE], tl.float32)
        nearest_below = tl.zeros([TILE], tl.float32)
        nearest_above = tl.full([TILE], INFINITY, tl.float32)
        for start in range(0, VOCAB, TILE):
            tokens = start + tl.arange(0, TILE)
            distance, amount = look(row, tokens, top, rate, min_p, last_distance, last_token, VOCAB, WEIGHED)
            within = distance <= middle
            total += tl.where(within, amount, 0.0)
            nearest_below = tl.maximum(nearest_below, tl.where(within, distance, 0.0))
            nearest_above = tl.minimum(nearest_above, tl.where(within, INFINITY, distance))
        found = tl.sum(total, 0)
        reached = found >= target
        high = tl.where(reached, tl.max(nearest_below, 0), high)
        low = tl.where(reached, low, tl.min(nearest_above, 0))
        available = tl.where(reached, found, available)
    return high, available


@jit()
def last_of_equals(
    row: tl.tensor, top: tl.tensor, rate: tl.tensor, min_p: tl.tensor,
    last_distance: tl.tensor, last_token: tl.tensor, target: tl.tensor, limit: tl.tensor,
    VOCAB: tl.constexpr, TILE: tl.constexpr, WEIGHED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The token at distance ``limit`` with which, taken by their ids, those there complete ``target``."""
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, VOCAB, TILE):
        tokens = start + tl.arange(0, TILE)
        distance, amount = look(row, tokens, top, rate, min_p, last_distance, last_token, VOCAB, WEIGHED)
        total += tl.where(distance < limit, amount, 0.0)
    missing = target - tl.sum(total, 0)
    if WEIGHED:
        missing = missing / weigh(limit, rate)
    wanted = tl.minimum(tl.maximum(tl.ceil(missing), 1.0), VOCAB).to(tl.int32)
    last = -1
    seen = 0
    for start in range(0, VOCAB, TILE):
        tokens = start + tl.arange(0, TILE)
        distance, _ = look(row, tokens, top, rate, min_p, last_distance, last_token, VOCAB, WEIGHED)
        equal = (distance == limit).to(tl.int32)
        rank = seen + tl.cumsum(equal, 0)
        last = tl.maximum(last, tl.max(tl.where((equal > 0) & (rank <= wanted), tokens, -1), 0))
        seen += tl.sum(equal, 0)
    return last


@jit()
def tighten(
    row: tl.tensor, top: tl.tensor, rate: tl.tensor, min_p: tl.tensor,
    last_distance: tl.tensor, last_token: tl.tensor, target: tl.tensor, available: tl.tensor,
    VOCAB: tl.constexpr, TILE: tl.constexpr, WEIGHED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Limits within which there is what it takes to reach ``target``, and no more. Arguments: ``reach``."""
    limit, found = reach(
        row, top, rate, min_p, last_distance, last_token, target, available, VOCAB, TILE, WEIGHED
    )
    last = tl.where(limit == last_distance, last_token, VOCAB)
    if found - (weigh(limit, rate) if WEIGHED else 1.0) >= target:  # not all that are just as far are needed
        last = last_of_equals(
            row, top, rate, min_p, last_distance, last_token, target, limit, VOCAB, TILE, WEIGHED
        )
    return limit, last


@jit()
def nucleus(
    row: tl.tensor, top: tl.tensor, lowest: tl.tensor, rate: tl.tensor,
    top_k: tl.tensor, top_p: tl.tensor, min_p: tl.tensor, VOCAB: tl.constexpr, TILE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """``last_distance`` and ``last_token``. Within them, min-p excludes what is too unlikely by itself.

    ``row``: logits, all finite, of which ``top`` is the largest and ``lowest`` the smallest.
    """
    last_distance = tl.minimum(top - lowest, _FARTHEST)
    last_token = top_k * 0 + VOCAB
    if is_limited(top_k, VOCAB):
        wanted = top_k.to(tl.float32)
        last_distance, last_token = tighten(
            row, top, rate, min_p, last_distance, last_token, wanted, wanted * 0.0 + VOCAB, VOCAB, TILE, False
        )
    if top_p < 1.0:
        whole = total_weight(row, top, rate, min_p, last_distance, last_token, VOCAB, TILE)
        last_distance, last_token = tighten(
            row, top, rate, min_p, last_distance, last_token, top_p * whole, whole, VOCAB, TILE, True
        )
    return last_distance, last_token
