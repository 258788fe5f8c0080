"""Windows, reservations and refusals: never over the limit, and hints that are true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ErrorKind
from gateway.limits import SLOT_MS, WINDOW_MS, Account, Limits, Reservation, Window, duration

START_MS = 987_654_321


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int, int]]]:
    """A limit, and requests: pause before, tokens reserved, tokens used, how long it runs."""
    limit = draw(st.integers(1, 50))
    request = st.tuples(
        st.sampled_from([0, 1, 249, 250, 3_000, 20_000, 59_999, 60_000, 61_000]),
        st.integers(1, limit),
        st.integers(0, limit),
        st.sampled_from([0, 100, 10_000, 59_000, 70_000]),
    )
    return limit, draw(st.lists(request, max_size=60))


def run(limit: int, requests: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int]]:
    """Who is let in, and what it used in the end: (time, tokens). Checks each refusal's hint."""
    account, limits = Account(), Limits(tokens_per_minute=limit)
    running: list[tuple[int, Reservation]] = []
    now_ms = START_MS
    for pause_ms, reserved, used, length_ms in requests:
        now_ms += pause_ms
        for end in [end for end in running if end[0] <= now_ms]:
            end[1].settle()
            running.remove(end)
        refusal = account.why_no_tokens(limits, reserved, now_ms)
        if refusal is not None:
            check_hint(account, limits, reserved, now_ms)
            continue
        reservation = Reservation(account.tokens, reserved, now_ms)
        reservation.use(min(used, reserved), now_ms)
        running.append((now_ms + length_ms, reservation))
        yield now_ms, min(used, reserved)


def check_hint(account: Account, limits: Limits, count: int, now_ms: int) -> None:
    """Waiting exactly so long is enough, and less is not."""
    refusal = account.why_no_tokens(limits, count, now_ms)
    assert refusal is not None and refusal.retry_after_s is not None
    wait_ms = round(refusal.retry_after_s * 1000)
    assert 0 < wait_ms <= WINDOW_MS + SLOT_MS
    twin = Window()
    twin._slots, twin._used = dict(account.tokens._slots), account.tokens._used
    limit = limits.tokens_per_minute
    assert limit is not None
    assert twin.wait_ms(count, limit, now_ms + wait_ms - 1) > 0
    assert twin.wait_ms(count, limit, now_ms + wait_ms) == 0


@given(lives())
@settings(deadline=None)
def test_no_minute_ever_has_more_than_the_limit(life: tuple[int, list[tuple[int, int, int, int]]]) -> None:
    """Whatever was reserved and given back: used tokens, as of when their request was let in."""
    limit, requests = life
    admitted = list(run(limit, requests))
    for start, _ in admitted:
        assert sum(used for at, used in admitted if start <= at < start + WINDOW_MS) <= limit


@given(lives())
@settings(deadline=None)
def test_what_was_given_back_counts_as_if_it_had_never_been_reserved(
    life: tuple[int, list[tuple[int, int, int, int]]],
) -> None:
    _, requests = life
    window, plain = Window(), Window()
    reservations = []
    now_ms = START_MS
    for pause_ms, reserved, used, _ in requests:
        now_ms += pause_ms
        reservation = Reservation(window, reserved, now_ms)
        reservation.use(min(used, reserved), now_ms)
        reservations.append(reservation)
        plain.add(min(used, reserved), now_ms)
    for reservation in reservations:
        reservation.settle()
    for later_ms in (0, 1, 30_000, 60_000, 60_250):
        assert window.used(now_ms + later_ms) == plain.used(now_ms + later_ms)
    assert len(window._slots) <= 241


def test_a_minute_is_a_minute() -> None:
    window = Window()
    window.add(3, START_MS)
    assert window.wait_ms(1, 3, START_MS) == window.reset_ms(START_MS)
    assert window.used(START_MS + WINDOW_MS) == 3  # never forgotten early ...
    assert window.used(START_MS + WINDOW_MS + SLOT_MS) == 0  # ... and late by a slot at most
    assert window.reset_ms(START_MS + WINDOW_MS + SLOT_MS) == 0


def test_what_is_used_beyond_a_reservation_counts_as_it_comes() -> None:
    window = Window()
    reservation = Reservation(window, 10, 0)
    reservation.use(8, 0)
    assert window.used(0) == 10
    reservation.use(5, 30_000)
    assert window.used(30_000) == 13
    reservation.use(1, 30_000)
    reservation.settle()
    assert window.used(30_000) == 14
    assert window.used(WINDOW_MS + SLOT_MS) == 4


def test_requests_are_refused_past_their_limit_until_the_first_is_a_minute_old() -> None:
    account, limits = Account(), Limits(requests_per_minute=2)
    for now_ms in (0, 10_000):
        assert account.why_no_request(limits, now_ms) is None
        account.requests.add(1, now_ms)
    refusal = account.why_no_request(limits, 20_000)
    assert refusal is not None
    assert (refusal.status, refusal.kind, refusal.limit) == (429, ErrorKind.REQUEST_LIMIT, "requests")
    assert refusal.retry_after_s == 40.25
    assert account.why_no_request(limits, 60_249) is not None
    assert account.why_no_request(limits, 60_250) is None


def test_a_token_refusal_waits_for_the_request_limit_too() -> None:
    account, limits = Account(), Limits(requests_per_minute=1, tokens_per_minute=10)
    account.tokens.add(9, 0)
    account.requests.add(1, 5_000)
    refusal = account.why_no_tokens(limits, 2, 5_000)
    assert refusal is not None and refusal.limit == "tokens"
    assert refusal.retry_after_s == 60.25


@pytest.mark.parametrize("count", [11, 10**9])
def test_what_can_never_pass_is_400_without_a_hint(count: int) -> None:
    limits = Limits(max_concurrent=10, tokens_per_minute=10)
    account = Account()
    account.in_flight = 1
    for refusal in (
        account.why_no_tokens(limits, count, 0),
        account.why_no_seats(limits, count - 1, held=1),
    ):
        assert refusal is not None
        assert (refusal.status, refusal.retry_after_s) == (400, None)
        assert "10" in refusal.message


def test_seats_are_counted_and_a_request_may_have_them_all() -> None:
    account, limits = Account(), Limits(max_concurrent=3)
    assert account.why_no_seats(limits, 1) is None
    account.in_flight = 1
    assert account.why_no_seats(limits, 2, held=1) is None
    account.in_flight = 2
    refusal = account.why_no_seats(limits, 2, held=1)
    assert refusal is not None
    assert (refusal.status, refusal.limit, refusal.retry_after_s) == (429, "concurrency", 1)


def test_without_limits_nothing_is_refused_but_all_is_counted() -> None:
    account = Account()
    account.tokens.add(10**9, 0)
    assert account.why_no_tokens(Limits(), 10**9, 0) is None
    assert account.why_no_request(Limits(), 0) is None
    assert account.headers(Limits(), 0) == {}
    headers = account.headers(Limits(tokens_per_minute=100), 0)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert account.why_no_tokens(Limits(tokens_per_minute=100), 100, 0) is not None  # a lowered limit


def test_headers_are_openais() -> None:
    account = Account()
    account.requests.add(1, 0)
    account.tokens.add(16, 0)
    assert account.headers(Limits(requests_per_minute=60, tokens_per_minute=150_000), 0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1m0.25s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "1m0.25s",
    }


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (120, "120ms"), (1000, "1s"), (7660, "7.66s"), (59_999, "59.999s"), (360_000, "6m0s")],
)
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text
