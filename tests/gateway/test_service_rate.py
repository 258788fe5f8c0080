"""The measured rate, and hints from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.service_rate import MAX_RETRY_S, MIN_RETRY_S, ReturnLine, ServiceRate


@given(st.integers(1, 1000), st.floats(0.001, 1), st.integers(1, 200))
def test_a_steady_rate_is_found(tokens: int, seconds: float, steps: int) -> None:
    rate = ServiceRate()
    for step in range(1, steps + 1):
        rate.note_step(step * tokens, seconds)
    assert rate.tokens_per_s == pytest.approx(tokens / seconds)
    assert ReturnLine(rate).retry_after_s(10 * tokens / seconds, 1, 0.0) == pytest.approx(10)


def test_the_past_fades() -> None:
    rate = ServiceRate()
    total = 0
    for tokens in (*[100] * 100, *[10] * 100):
        total += tokens
        rate.note_step(total, 1.0)
    assert rate.tokens_per_s == pytest.approx(10, rel=0.01)


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e6), st.floats(0, 100))), st.integers(0, 100))
def test_hints_stay_within_what_a_client_can_use(asks: list[tuple[float, float, float]], served: int) -> None:
    rate = ServiceRate()
    rate.note_step(served, 0.0)
    rate.note_step(served, 0.5)
    line, now_s = ReturnLine(rate), 0.0
    for excess, asked, pause_s in asks:
        now_s += pause_s
        assert MIN_RETRY_S <= line.retry_after_s(excess, asked, now_s) <= MAX_RETRY_S


def test_without_a_measurement_the_hint_is_the_shortest() -> None:
    assert ServiceRate().tokens_per_s == 0
    assert ReturnLine(ServiceRate()).retry_after_s(10**9, 10**9, 0.0) == MIN_RETRY_S


def steady(tokens_per_s: int) -> ServiceRate:
    rate = ServiceRate()
    rate.note_step(tokens_per_s, 1.0)
    return rate


def test_those_refused_at_once_return_one_after_the_other() -> None:
    line = ReturnLine(steady(100))
    assert [line.retry_after_s(200, 200, 0.0) for _ in range(4)] == [2, 4, 6, 8]
    assert line.retry_after_s(200, 200, 6.0) == 4  # three of the four have had their turn
    assert line.retry_after_s(200, 200, 100.0) == 2


def test_a_flood_is_forgotten_within_the_longest_hint() -> None:
    line = ReturnLine(steady(100))
    for _ in range(10_000):
        line.retry_after_s(200, 200, 0.0)
    assert line.retry_after_s(200, 200, 1.0) == MAX_RETRY_S
    assert line.retry_after_s(200, 200, 1.0 + MAX_RETRY_S) == 2
