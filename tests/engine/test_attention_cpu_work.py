"""Every token of every head is one lane's, shares are even, and heads are cut between segments only."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from engine.attention.cpu import NO_WINDOW
from engine.attention.cpu_softmax import SEGMENT, TILE
from engine.attention.cpu_work import DecodeWork, split_decodes


def segments(start: int, stop: int) -> int:
    return -(-stop // SEGMENT) - start // SEGMENT


def assert_whole(work: DecodeWork, positions: list[int], num_kv_heads: int, window: int, lanes: int) -> None:
    assert all(array.flags.c_contiguous for array in (work.runs, work.bounds, work.split))
    runs = work.runs.tolist()
    heads = {key: list(found) for key, found in itertools.groupby(runs, key=lambda run: tuple(run[:2]))}
    assert list(heads) == [(row, head) for row in range(len(positions)) for head in range(num_kv_heads)]
    places: list[int] = []
    split = []
    for (row, head), found in heads.items():
        assert found[0][2] == max(0, positions[row] + 1 - window) // TILE * TILE
        assert found[-1][3] == positions[row] + 1
        for (_, _, _, stop, *_), (_, _, start, *_) in itertools.pairwise(found):
            assert start == stop and stop % SEGMENT == 0
        assert all(start < stop and step == (len(found) > 1) for _, _, start, stop, _, step in found)
        if len(found) > 1:
            first = found[0][4]
            for _, _, start, stop, place, _ in found:
                places += range(place, place + segments(start, stop))
            split.append([row, head, first, places[-1] + 1])
    assert places == list(range(lanes, work.num_places))
    assert work.split.tolist() == split
    bounds = work.bounds.tolist()
    assert len(bounds) == lanes + 1 and (bounds[0], bounds[-1]) == (0, len(runs))
    for lane, (first, last) in enumerate(itertools.pairwise(bounds)):
        assert all(place == lane for *_, place, step in runs[first:last] if not step)
        total = sum(stop - start for _, _, start, stop, *_ in runs)
        share = sum(stop - start for _, _, start, stop, *_ in runs[first:last])
        assert abs(share - total / lanes) <= SEGMENT + 1


@pytest.mark.parametrize("window", [NO_WINDOW, 700, 40])
def test_random_batches(window: int) -> None:
    rng = random.Random(window)
    for _ in range(100):
        count, num_kv_heads, lanes = rng.randint(1, 6), rng.randint(1, 4), rng.choice([1, 2, 3, 4, 24])
        longest = rng.choice([5, 300, 3000])
        positions = [rng.randrange(longest) for _ in range(count)]
        work = split_decodes(np.array(positions, np.int32), num_kv_heads, window, lanes)
        assert_whole(work, positions, num_kv_heads, window, lanes)


def test_one_long_context_keeps_all_lanes_busy() -> None:
    work = split_decodes(np.array([8 * SEGMENT - 1], np.int32), 1, NO_WINDOW, 4)
    assert [stop - start for _, _, start, stop, *_ in work.runs.tolist()] == [2 * SEGMENT] * 4


def test_whole_heads_need_no_places_but_the_lanes_own() -> None:
    work = split_decodes(np.array([63] * 4, np.int32), 2, NO_WINDOW, 2)
    assert work.num_places == 2 and work.split.shape == (0, 4)
    assert work.bounds.tolist() == [0, 4, 8]
