"""The events that are kept of a response: in order, without a gap, and not without end."""

from __future__ import annotations

import pytest

from gateway.errors import ApiError
from gateway.openai.responses.events import Event
from gateway.responses.event_log import (
    MAX_BATCH_BYTES,
    MAX_EVENT_NUMBER,
    EventLog,
    EventsGoneError,
    number_asked_for,
)


def event(number: int, size: int = 10, type: str = "response.output_text.delta") -> Event:
    return Event(number, type, b"x" * size)


def filled(count: int, max_bytes: int = 10**9, size: int = 10) -> EventLog:
    log = EventLog(max_bytes)
    log.add(event(number, size) for number in range(count))
    return log


def numbers(log: EventLog, after: int) -> list[int]:
    return [event.sequence_number for event in log.after(after)]


def test_what_follows_a_number_is_all_that_comes_after_it() -> None:
    log = filled(5)
    for known in range(-1, 5):
        assert numbers(log, known) == list(range(known + 1, 5))
    log.add([event(5)])
    assert numbers(log, 4) == [5]


def test_a_number_that_there_never_was_is_refused() -> None:
    log = filled(3)
    for known in (3, 4, 10**9, -2):
        with pytest.raises(EventsGoneError):
            log.check(known)
        with pytest.raises(EventsGoneError):
            log.after(known)


def test_an_empty_log_can_be_followed_from_its_beginning() -> None:
    log = EventLog(1)
    log.check(-1)
    assert log.after(-1) == []
    assert not log.is_full


def test_batches_are_of_a_bounded_size_and_leave_nothing_out() -> None:
    size = MAX_BATCH_BYTES // 4 + 1
    log = filled(10, size=size)
    known, seen = -1, list[int]()
    while batch := log.after(known):
        assert sum(len(event.data) for event in batch) < MAX_BATCH_BYTES + size
        seen += [event.sequence_number for event in batch]
        known = seen[-1]
    assert seen == list(range(10))


def test_one_that_is_larger_than_a_batch_comes_alone() -> None:
    log = filled(3, size=2 * MAX_BATCH_BYTES)
    assert numbers(log, -1) == [0]
    assert numbers(log, 0) == [1]


def test_only_what_may_go_goes_and_half_of_it_stays() -> None:
    log = filled(100, max_bytes=4000)
    assert log.is_full
    log.forget_until(9)
    assert log.first == 10
    log.forget_until(99)
    assert not log.is_full
    assert 2000 - 1000 < log.num_bytes <= 2000
    with pytest.raises(EventsGoneError):
        log.after(log.first - 2)
    assert numbers(log, log.first - 1) == list(range(log.first, 100))
    assert log.next == 100


def test_its_bytes_are_counted_with_what_python_adds() -> None:
    log = filled(50)
    before = log.num_bytes
    assert before > 50 * 10
    log.forget_until(49)
    assert log.num_bytes == before  # it is not half full
    log = filled(50, max_bytes=0)
    log.forget_until(49)
    assert (log.num_bytes, log.first, log.next) == (0, 50, 50)


@pytest.mark.parametrize("type", ["response.completed", "response.incomplete", "response.failed"])
def test_nothing_follows_the_last_event(type: str) -> None:
    log = filled(2)
    assert not log.is_ended
    log.add([event(2, type=type)])
    assert log.is_ended
    with pytest.raises(AssertionError):
        log.add([event(3)])


def test_a_gap_is_a_fault_of_ours() -> None:
    log = filled(2)
    with pytest.raises(AssertionError):
        log.add([event(3)])


def test_a_url_names_an_event_or_none() -> None:
    assert [number_asked_for({"starting_after": text}) for text in ("-1", "0", "007", "999999999")] == [
        -1, 0, 7, MAX_EVENT_NUMBER,
    ]  # fmt: skip
    assert number_asked_for({}) == -1
    for text in ("", "-0", "-2", "x", "1.0", "+1", "1000000000", "\u0661"):
        with pytest.raises(ApiError):
            number_asked_for({"starting_after": text})
