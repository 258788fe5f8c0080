"""Which lane computes what of a batch of decodes, decided once a step.

Heads go to the lanes in order, each lane as many tokens as another. Where a lane's share ends inside of a
head, the head is cut at the next border of segments: who computes a segment does not show in its bits.
Runs on: step thread. Pure.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.attention.cpu_softmax import SEGMENT, TILE

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """Runs of tokens ``[W, 6]``, the lanes' bounds among them, and heads split between lanes ``[S, 4]``.

    ``engine.attention.cpu_decode.decode`` says what the columns are.
    """

    runs: Ints
    bounds: Ints
    split: Ints
    num_places: int


def split_decodes(positions: npt.NDArray[np.int32], num_kv_heads: int, window: int, lanes: int) -> DecodeWork:
    """For decodes at ``positions`` ``[B]``, which see ``window`` tokens up to their own."""
    whole = np.zeros((len(positions) * num_kv_heads, 6), np.int64)
    rows, heads, starts, ends, _, _ = whole.T
    np.divmod(np.arange(len(whole)), num_kv_heads, out=(rows, heads))
    ends[:] = positions[rows] + 1
    starts[:] = np.maximum(0, ends - window) // TILE * TILE
    reached = np.cumsum(ends - starts)
    goals = (reached[-1] * np.arange(1, lanes) // lanes).tolist()
    cuts = [(0, 0), *(_cut(starts, ends, reached, goal) for goal in goals), (len(whole), 0)]
    shares = [_share(whole, lane, *cut) for lane, cut in enumerate(itertools.pairwise(cuts))]
    runs = np.concatenate(shares)
    bounds = np.cumsum([0, *(len(share) for share in shares)])
    split, num_places = _give_places(runs, whole, num_kv_heads, lanes)
    return DecodeWork(runs, bounds, split, num_places)


def _cut(starts: Ints, ends: Ints, reached: Ints, goal: int) -> tuple[int, int]:
    """The head, and a token of it at a border of segments, before which there are about ``goal`` tokens."""
    head = int(np.searchsorted(reached, goal, side="right"))
    token = int(ends[head] - reached[head]) + goal
    border = (token + SEGMENT // 2) // SEGMENT * SEGMENT
    return (head, max(border, int(starts[head]))) if border < ends[head] else (head + 1, 0)


def _share(whole: Ints, lane: int, first: tuple[int, int], last: tuple[int, int]) -> Ints:
    """A lane's runs, from one cut up to the next."""
    (head, token), (last_head, last_token) = first, last
    is_cut = first != last and last_head < len(whole) and last_token > whole[last_head, 2]
    runs = whole[head : last_head + is_cut].copy()
    runs[:, 4] = lane
    runs[:1, 2] = np.maximum(runs[:1, 2], token)
    if is_cut:
        runs[-1, 3] = last_token
    return runs


def _give_places(runs: Ints, whole: Ints, num_kv_heads: int, lanes: int) -> tuple[Ints, int]:
    """Give each segment of a head that lanes share a place of its own, behind those of the lanes.

    Returns the rows of ``DecodeWork.split``, and how many places there are.
    """
    index = runs[:, 0] * num_kv_heads + runs[:, 1]
    shared = np.flatnonzero((runs[:, 2:4] != whole[index, 2:4]).any(axis=1))
    if not len(shared):
        return np.empty((0, 4), np.int64), lanes
    counts = -(-runs[shared, 3] // SEGMENT) - runs[shared, 2] // SEGMENT
    after = lanes + np.cumsum(counts)
    runs[shared, 4], runs[shared, 5] = after - counts, 1
    _, first = np.unique(index[shared], return_index=True)
    last = np.append(first[1:], len(shared)) - 1
    rows, heads, _, _, places, _ = runs[shared[first]].T
    return np.stack([rows, heads, places, after[last]], axis=1), lanes + int(counts.sum())
