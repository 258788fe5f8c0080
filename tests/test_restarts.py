"""When another engine is started and when no more, in virtual time; what makes it another model."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import EngineInfo
from engine.restarts import RestartPlan, differences
from tests.gateway.house import engine_info


def started(plan: RestartPlan, now_s: float, took_s: float = 5.0) -> RestartPlan:
    plan.note_start(now_s)
    plan.note_ready(now_s + took_s)
    return plan


def test_deaths_in_a_row_wait_ever_longer_and_then_it_is_over() -> None:
    plan = started(RestartPlan(5, window_s=600, delay_s=1), 0)
    assert [plan.note_death(100 + i) for i in range(7)] == [0, 1, 2, 4, 8, None, None]
    assert "death 6 within 600 s" in plan.limit


def test_a_delay_has_a_bound() -> None:
    plan = RestartPlan(100)
    assert max(plan.note_death(0) or 0 for _ in range(100)) == 60


def test_no_restarts_means_the_first_death_is_the_last() -> None:
    plan = started(RestartPlan(0), 0)
    assert plan.ready_in_s(10) is None
    assert plan.note_death(10) is None
    assert plan.limit == ""


def test_deaths_far_apart_are_each_the_first() -> None:
    plan = RestartPlan(1, window_s=600)
    assert [plan.note_death(1000.0 * i) for i in range(50)] == [0] * 50
    assert plan.note_death(49_599) is None
    assert plan.note_death(49_600) == 0


@given(st.integers(0, 6), st.lists(st.floats(0, 300), max_size=60))
def test_no_window_ever_has_more_starts_than_allowed(most: int, pauses_s: list[float]) -> None:
    plan = RestartPlan(most, window_s=600)
    times = list(itertools.accumulate(pauses_s, initial=0.0))
    followed = [now for now in times if plan.note_death(now) is not None]
    for first in followed:
        assert sum(first <= now < first + 600 for now in followed) <= most
    if most:
        assert followed[:most] == times[:most]


def test_the_wait_that_clients_are_told_is_what_is_left_of_a_start_like_the_last() -> None:
    plan = started(RestartPlan(5, delay_s=1), 0, took_s=8)
    assert plan.ready_in_s(20) == 8  # dead, and nobody has noted it yet
    assert plan.note_death(20) == 0
    plan.note_start(20.5)
    assert plan.ready_in_s(22.5) == 6
    assert plan.ready_in_s(28) == 1
    assert plan.ready_in_s(500) == 1  # later than the last time: it may be there at any moment
    assert plan.note_death(30) == 1  # while starting
    assert plan.ready_in_s(30) == 1 + 8
    plan.note_start(31)
    plan.note_ready(34)
    assert plan.ready_in_s(40) == 2 + 3  # the next delay, and what the last start took


@pytest.mark.parametrize(
    ("field", "value"),
    [("fingerprint", b"x"), ("max_model_len", 1), ("chat_template", "x"), ("stop_token_ids", (1,))],
)
def test_another_model_is_told_by_what_is_other(field: str, value: object) -> None:
    before = engine_info("here", fingerprint=b"w")
    assert differences(before, msgspec.structs.replace(before, **{field: value})) == (field,)


def test_memory_and_what_was_found_in_it_may_differ() -> None:
    before = engine_info("here")
    after = msgspec.structs.replace(
        before, num_blocks=1, kv_bytes=2, host_blocks=3, disk_blocks_found=4, notes=("Other.",), threads=9
    )
    assert isinstance(after, EngineInfo)
    assert differences(before, after) == ()
