"""The mailbox between engine and handler: bounds, pauses, one terminal event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import FinishReason, PromptLogprobs, TokenDelta, TokenLogprobs
from gateway.mailbox import (
    SHUTDOWN,
    TOO_SLOW,
    FailureKind,
    Mailbox,
    MailboxState,
    Part,
    Signal,
    StreamFailedError,
    StreamLimits,
)

LIMITS = StreamLimits(high_units=4, hard_units=16, pause_timeout_s=30)


def delta(
    *ids: int, finish: FinishReason | None = None, error: str | None = None, index: int = 0
) -> TokenDelta:
    return TokenDelta("r", ids, finish_reason=finish, error=error, index=index)


def test_deltas_are_merged_in_order() -> None:
    box = Mailbox(LIMITS)
    box.put(delta(1, 2))
    box.put(TokenDelta("r", (3,), finish_reason=FinishReason.STOP, stop_token_id=3, num_cached_tokens=7))
    (part,) = box.take().batch.parts.values()
    assert part.token_ids == [1, 2, 3]
    assert (part.finish_reason, part.stop_token_id, part.num_cached_tokens) == (FinishReason.STOP, 3, 7)
    assert box.state is MailboxState.TAKEN


def test_the_bound_pauses_once_and_taking_resumes() -> None:
    box = Mailbox(LIMITS)
    assert box.put(delta(1, 2, 3)) is Signal.NONE
    assert box.put(delta(4)) is Signal.PAUSE
    assert box.put(delta(5)) is Signal.NONE
    taken = box.take()
    assert taken.signal is Signal.RESUME
    assert taken.batch.parts[0].token_ids == [1, 2, 3, 4, 5]
    assert box.take().signal is Signal.NONE


def test_alternatives_count_towards_the_bound() -> None:
    box = Mailbox(LIMITS)
    top = ((1, -1.0), (2, -2.0), (3, -3.0))
    assert box.put(TokenDelta("r", (1,), (TokenLogprobs(-1.0, top),))) is Signal.PAUSE


def test_an_engine_that_does_not_pause_overflows() -> None:
    box = Mailbox(LIMITS)
    signals = [box.put(delta(i)) for i in range(16)]
    assert signals.index(Signal.OVERFLOW) == 15


def test_a_finish_stands_against_a_later_failure() -> None:
    box = Mailbox(LIMITS)
    box.put(delta(1, finish=FinishReason.LENGTH))
    assert not box.fail(TOO_SLOW)
    assert box.take().batch.parts[0].finish_reason is FinishReason.LENGTH


def test_what_came_before_a_failure_is_delivered_first() -> None:
    box = Mailbox(LIMITS)
    box.put(delta(1, 2))
    box.put(delta(finish=FinishReason.ERROR, error="no blocks"))
    assert box.take().batch.parts[0].token_ids == [1, 2]
    with pytest.raises(StreamFailedError) as caught:
        box.take()
    assert caught.value.failure.kind is FailureKind.REQUEST_FAILED
    assert "no blocks" not in caught.value.failure.message
    assert box.state is MailboxState.TAKEN


OPERATIONS = st.lists(
    st.one_of(
        st.integers(1, 5).map(lambda n: ("put", n)),
        st.just(("take", 0)),
        st.sampled_from([("finish", 1), ("error", 0), ("fail", 0)]),
    ),
    max_size=30,
)


@given(OPERATIONS)
def test_tokens_keep_their_order_and_the_end_comes_once(operations: list[tuple[str, int]]) -> None:
    box, put, ends = Mailbox(LIMITS), 0, 0
    got: list[int] = []
    following: list[int] = []
    for name, count in operations:
        if name == "take" and box.state is not MailboxState.TAKEN:
            try:
                batch = box.take().batch
            except StreamFailedError:
                ends += 1
            else:
                part = batch.parts.get(0, Part())
                got += part.token_ids
                ends += part.finish_reason is not None
        elif name != "take" and box.is_open:
            following += range(put, put + count)
            finish = {"finish": FinishReason.STOP, "error": FinishReason.ERROR}.get(name)
            if name == "fail":
                box.fail(SHUTDOWN)
            else:
                box.put(delta(*range(put, put + count), finish=finish))
            put += count
        elif name == "put":
            assert box.put(delta(-1)) is Signal.ENDED
    while box.state is not MailboxState.TAKEN and not box.is_open:
        try:
            part = box.take().batch.parts.get(0, Part())
            got += part.token_ids
            ends += part.finish_reason is not None
        except StreamFailedError:
            ends += 1
    assert got == following[: len(got)]
    assert ends <= 1
    if box.state is MailboxState.TAKEN:
        assert ends == 1
        assert got == following


def test_a_stream_of_several_ends_with_the_last_of_them() -> None:
    box = Mailbox(LIMITS, num_seqs=3)
    box.put(delta(1, finish=FinishReason.STOP))
    box.put(delta(2, index=1))
    box.put(delta(3, index=2, finish=FinishReason.LENGTH))
    assert box.is_open
    parts = box.take().batch.parts
    assert {index: part.token_ids for index, part in parts.items()} == {0: [1], 1: [2], 2: [3]}
    assert [part.finish_reason for part in parts.values()] == [FinishReason.STOP, None, FinishReason.LENGTH]
    box.put(delta(9, index=0))
    box.put(delta(4, index=1, finish=FinishReason.STOP))
    assert box.state is MailboxState.ENDED
    assert list(box.take().batch.parts) == [1]


def test_what_is_closed_takes_nothing_more() -> None:
    box = Mailbox(LIMITS, num_seqs=2)
    box.close(0)
    box.put(delta(1, 2, 3, 4, 5))
    box.put(delta(6, index=1, finish=FinishReason.STOP))
    assert list(box.take().batch.parts) == [1]
    assert box.state is MailboxState.TAKEN


def test_the_bounds_grow_with_the_number_of_sequences() -> None:
    box = Mailbox(LIMITS, num_seqs=3)
    signals = [box.put(delta(1, index=index % 3)) for index in range(48)]
    assert signals.index(Signal.PAUSE) == 3 * LIMITS.high_units - 1
    assert signals.index(Signal.OVERFLOW) == 3 * LIMITS.hard_units - 1


def test_an_error_of_one_sequence_ends_them_all() -> None:
    box = Mailbox(LIMITS, num_seqs=2)
    box.put(delta(finish=FinishReason.ERROR, error="broken"))
    assert not box.is_open
    with pytest.raises(StreamFailedError):
        box.take()


def test_results_that_come_all_at_once_are_no_overflow() -> None:
    """As those of a beam search do, however long: nothing more comes of what has ended."""
    box = Mailbox(LIMITS, num_seqs=3)
    huge = range(100 * LIMITS.hard_units)
    signals = [box.put(delta(*huge, finish=FinishReason.LENGTH, index=index)) for index in range(3)]
    assert signals == [Signal.NONE, Signal.NONE, Signal.ENDED]
    assert [len(part.token_ids) for part in box.take().batch.parts.values()] == [len(huge)] * 3
    assert box.state is MailboxState.TAKEN


def test_a_request_that_ends_without_its_sequences_is_a_failure() -> None:
    box = Mailbox(LIMITS, num_seqs=2)
    box.put(delta(1, finish=FinishReason.STOP))
    box.put(TokenDelta("r", index=1, ends_request=True))
    assert list(box.take().batch.parts) == [0, 1]
    with pytest.raises(StreamFailedError):
        box.take()


def test_log_probabilities_of_a_prompt_are_not_counted() -> None:
    mailbox = Mailbox(StreamLimits(high_units=2, hard_units=4))
    found = PromptLogprobs(bytes(4000), bytes(4000))
    assert mailbox.put(TokenDelta("r", (1,), prompt_logprobs=found)) is Signal.NONE
    assert mailbox.take().batch.parts[0].prompt_logprobs is found
    mailbox.put(TokenDelta("r", (2,)))
    assert mailbox.take().batch.parts[0].prompt_logprobs is None
