"""The order in which one tenant's parked requests come back, held against sorting all of them."""

from __future__ import annotations

import random

import pytest

from engine.messages import AddRequest, SamplingParams
from engine.parked_line import OVERDUE_S, ParkedLine
from engine.request import SequenceGroup
from tiering.hashing import BlockNamer


def group(number: int, priority: int = 0, idle_since: float = 0.0) -> SequenceGroup:
    sampling = SamplingParams(max_tokens=4, seed=0)
    message = AddRequest(request_id=f"r{number}", prompt_token_ids=(1,), sampling=sampling, priority=priority)
    namer = BlockNamer(bytes(32), 4)
    return SequenceGroup(
        message, arrival_index=number, namer=namer, max_len=8, stop_token_ids=(), now=idle_since
    )


def names(line: ParkedLine, priority: int, *, with_overdue: bool = False) -> list[str]:
    return [one.request_id for one in line.candidates(priority, with_overdue=with_overdue)]


def test_a_class_comes_by_arrival_whoever_was_parked_first() -> None:
    line = ParkedLine()
    for number in (5, 1, 3):
        line.add(group(number))
    line.add(group(2, priority=1))
    assert line.classes() == {0, 1}
    assert names(line, 0) == ["r1", "r3", "r5"]
    assert names(line, 1) == ["r2"]
    assert names(line, 2) == []


def test_the_overdue_have_no_class_and_come_in_between_by_arrival() -> None:
    line = ParkedLine()
    for number, priority, idle_since in ((1, 7, 100.0), (2, 9, 0.0), (3, 7, 100.0), (4, 7, 50.0)):
        line.add(group(number, priority, idle_since))
    line.note_overdue(OVERDUE_S)
    assert not line.overdue
    line.note_overdue(OVERDUE_S + 51)
    assert [one.request_id for one in line.overdue] == ["r2", "r4"]
    assert all(one.is_overdue for one in line.overdue)
    assert line.classes() == {7}
    assert names(line, 7, with_overdue=True) == ["r1", "r2", "r3", "r4"]
    assert names(line, 7) == ["r1", "r3"]


def test_what_was_taken_out_or_began_to_wait_anew_is_not_overdue() -> None:
    line = ParkedLine()
    gone, back = group(1), group(2)
    for one in (gone, back):
        line.add(one)
        line.remove(one)
    back.idle_since = 50.0
    line.add(back)
    line.note_overdue(OVERDUE_S + 1)
    assert not (gone.is_overdue or back.is_overdue)
    assert line.holds([back])


def test_who_is_given_out_may_leave() -> None:
    line = ParkedLine()
    for number in range(4):
        line.add(group(number))
    given = []
    for one in line.candidates(0, with_overdue=True):
        given.append(one.request_id)
        line.remove(one)
    assert given == ["r0", "r1", "r2", "r3"]
    assert line.holds([])


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_go_as_sorting_says(seed: int) -> None:
    rng = random.Random(seed)
    line, inside, outside = ParkedLine(), list[SequenceGroup](), [group(i, i % 3) for i in range(30)]
    for now in range(0, 600, 5):
        rng.shuffle(outside)
        for one in outside[: rng.randrange(3)]:
            outside.remove(one)
            one.idle_since = now - rng.choice((0.0, 1.0, 30.0))
            line.add(one)
            inside.append(one)
        for one in rng.sample(inside, min(len(inside), rng.randrange(2))):
            line.remove(one)
            inside.remove(one)
            outside.append(one)
        line.note_overdue(now)
        assert all(one.is_overdue for one in inside if now - one.idle_since > OVERDUE_S)
        inside.sort(key=lambda one: one.arrival_index)
        for priority in range(3):
            due = [one.request_id for one in inside if one.is_overdue or one.priority == priority]
            assert names(line, priority, with_overdue=True) == due
        assert line.holds(inside)
    assert any(one.is_overdue for one in (*inside, *outside))
