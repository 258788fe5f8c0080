"""The measured rate, and hints from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.service_rate import MAX_RETRY_S, MIN_RETRY_S, ServiceRate


@given(st.integers(1, 1000), st.floats(0.001, 1), st.integers(1, 200))
def test_a_steady_rate_is_found(tokens: int, seconds: float, steps: int) -> None:
    rate = ServiceRate()
    for step in range(1, steps + 1):
        rate.note_step(step * tokens, seconds)
    assert rate.tokens_per_s == pytest.approx(tokens / seconds)
    assert rate.retry_after_s(10 * tokens / seconds) == pytest.approx(10)


def test_the_past_fades() -> None:
    rate = ServiceRate()
    total = 0
    for tokens in (*[100] * 100, *[10] * 100):
        total += tokens
        rate.note_step(total, 1.0)
    assert rate.tokens_per_s == pytest.approx(10, rel=0.01)


@given(st.floats(0, 1e12), st.integers(0, 100))
def test_hints_stay_within_what_a_client_can_use(num_tokens: float, served: int) -> None:
    rate = ServiceRate()
    rate.note_step(served, 0.0)
    rate.note_step(served, 0.5)
    assert MIN_RETRY_S <= rate.retry_after_s(num_tokens) <= MAX_RETRY_S


def test_without_a_measurement_the_hint_is_the_shortest() -> None:
    assert ServiceRate().tokens_per_s == 0
    assert ServiceRate().retry_after_s(10**9) == MIN_RETRY_S
