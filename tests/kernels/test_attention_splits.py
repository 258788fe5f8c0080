"""The plan of a step's decodes: every visible token once, in even pieces, and no more than the grid holds."""

from __future__ import annotations

import itertools
import os

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.triton.configs import split_budget
from engine.attention.triton.splits import SplitPlan
from engine.attention.triton.variants import shape_of

CPU = torch.device("cpu")
LEAST, TILE = 256, 64


def plan_of(
    lengths: list[int], at_once: int, window: int = 0, padding: int = 0
) -> list[list[tuple[int, int]]]:
    """Pieces (first token, last token + 1) of each sequence, after checks of what else the plan says."""
    shape = shape_of("fp16", 64, 4, window=window)
    plan = SplitPlan.allocate(shape, 8, at_once, CPU)
    plan.work.fill_(7)
    plan.make(torch.tensor([*lengths, *[0] * padding], dtype=torch.int32), len(lengths) + padding, shape)
    starts = plan.starts.tolist()
    rows = plan.work[: plan.num_pieces(len(lengths) + padding)].tolist()
    assert all(row[0] == -1 for row in rows[starts[len(lengths) + padding] :]), (
        "a piece of nobody is not idle"
    )
    found = []
    for index in range(len(lengths) + padding):
        pieces = rows[starts[index] : starts[index + 1]]
        assert pieces and all(row[0] == index and row[3] == (len(pieces) == 1) for row in pieces)
        found.append([(row[1], row[2]) for row in pieces])
    return found


@settings(max_examples=600 if os.environ.get("TIDEGATE_SLOW") else 25)
@given(
    lengths=st.lists(st.integers(1, 9000), min_size=1, max_size=6),
    at_once=st.integers(1, 40),
    window=st.sampled_from((0, 1, 300, 4096)),
)
def test_every_visible_token_is_in_one_piece_and_pieces_are_even(
    lengths: list[int], at_once: int, window: int
) -> None:
    pieces, budget = plan_of(lengths, at_once, window), split_budget(at_once, len(lengths))
    for length, found in zip(lengths, pieces, strict=True):
        assert found[0][0] == (max(0, length - window) if window else 0)
        assert found[-1][1] == length
        assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
        sizes = [last - first for first, last in found]
        assert all(size == sizes[0] for size in sizes[:-1]) and 0 < sizes[-1] <= sizes[0]
    visible = [found[-1][1] - found[0][0] for found in pieces]
    longest = max(last - first for found in pieces for first, last in found)
    assert longest < max(LEAST, sum(visible) / budget + 1) + TILE


def test_one_long_sequence_takes_the_whole_budget() -> None:
    (pieces,) = plan_of([8000], at_once=10)
    assert len(pieces) == 10
    assert len({last - first for first, last in pieces[:-1]}) == 1


def test_short_sequences_stay_whole() -> None:
    assert plan_of([256, 1, 100], at_once=40) == [[(0, 256)], [(0, 1)], [(0, 100)]]


def test_padding_has_one_empty_piece_each() -> None:
    assert plan_of([300], at_once=2, padding=2)[1:] == [[(0, 0)], [(0, 0)]]


def test_a_plan_made_again_forgets_the_one_before() -> None:
    shape = shape_of("fp16", 64, 4)
    plan = SplitPlan.allocate(shape, 4, 20, CPU)
    plan.make(torch.tensor([5000, 5000], dtype=torch.int32), 2, shape)
    plan.make(torch.tensor([10, 20], dtype=torch.int32), 2, shape)
    assert plan.work[:, 0].tolist()[:22] == [0, 1, *[-1] * 20]
