"""How events become a timeline."""

from __future__ import annotations

import json
import math
from typing import Any

from loadtest.drivers.answer import Answer
from loadtest.drivers.apis import Options, api_of
from loadtest.drivers.base import PastTurn
from loadtest.drivers.target import Target
from loadtest.plan import PlannedRequest, Reading
from loadtest.timeline import Outcome, Timeline, Usage

TARGET = Target("http://127.0.0.1:1", "m", api="completions")


def begin(
    *, n: int = 1, leave_after: float = math.inf, so_far: bool = False, tells_usage: bool = True
) -> tuple[Timeline, Answer]:
    planned = PlannedRequest(0, "asked", 1, 9, n=n, reading=Reading(leave_after))
    timeline = Timeline(planned, 0, 1, 0.0)
    options = Options(tells_usage=tells_usage, tells_usage_so_far=so_far)
    return timeline, Answer(timeline, api_of(TARGET, options), options)


def chunk(*texts: str, first: int = 0, finish: str | None = None, tokens: int | None = None) -> bytes:
    choices = [{"index": first + at, "text": text, "finish_reason": finish} for at, text in enumerate(texts)]
    usage = None if tokens is None else {"prompt_tokens": 5, "completion_tokens": tokens}
    event: dict[str, Any] = {"choices": choices, "usage": usage}
    return json.dumps(event).encode()


def test_an_answer_from_its_first_piece_to_its_end() -> None:
    timeline, answer = begin()
    assert answer.take(chunk(""), 1.0) == 0
    assert answer.take(chunk(" a"), 2.0) == 1
    answer.take(chunk(" b c"), 3.0)
    answer.take(chunk("", finish="length"), 4.0)
    answer.take(chunk(tokens=3), 5.0)
    assert timeline.outcome is Outcome.UNFINISHED
    answer.take(b"[DONE]", 6.0)
    assert timeline.outcome is Outcome.COMPLETED
    assert timeline.piece_times == [[2.0, 3.0]]
    assert timeline.piece_tokens is None
    assert timeline.usage == Usage(5, 3)
    assert timeline.finish_reasons == ["length"]
    assert timeline.ended_at == 6.0
    assert answer.turn() == PastTurn("asked", " a b c")


def test_tokens_of_a_piece_are_those_that_usage_grew_by() -> None:
    timeline, answer = begin(so_far=True)
    answer.take(chunk(" a", tokens=1), 1.0)
    answer.take(chunk("", tokens=2), 2.0)  # half a character
    answer.take(chunk(" b", tokens=4), 3.0)
    assert timeline.piece_tokens == [[1, 3]]


def test_an_answer_without_any_text_has_failed() -> None:
    """It has no first token, so that no limit for that could be missed."""
    timeline, answer = begin()
    answer.take(chunk("", finish="stop"), 1.0)
    answer.take(chunk(tokens=1), 2.0)
    answer.take(b"[DONE]", 3.0)
    assert (timeline.outcome, timeline.reason, timeline.ended_at) == (Outcome.FAILED, "no text", 3.0)
    assert answer.turn() is None


def test_several_choices_are_told_apart_and_their_tokens_are_not_guessed() -> None:
    timeline, answer = begin(n=2, so_far=True)
    answer.take(chunk(" a", tokens=1), 1.0)
    answer.take(chunk(" b", first=1, tokens=2), 2.0)
    answer.take(chunk("", finish="stop", tokens=2), 3.0)
    assert timeline.piece_times == [[1.0], [2.0]]
    assert timeline.piece_tokens is None
    answer.take_end(4.0)
    assert timeline.reason == "stream cut"  # the second choice has not finished


def test_a_stream_may_end_without_a_mark_once_all_has_been_said() -> None:
    timeline, answer = begin()
    answer.take(chunk(" a", finish="stop", tokens=1), 1.0)
    answer.take_end(2.0)
    assert timeline.outcome is Outcome.COMPLETED
    assert not answer.was_ended


def test_failures_have_names() -> None:
    timeline, answer = begin()
    answer.take(chunk(" a"), 1.0)
    answer.take(b"[DONE]", 2.0)
    assert (timeline.outcome, timeline.reason) == (Outcome.FAILED, "no finish reason")
    timeline, answer = begin()
    answer.take(chunk(" a", finish="stop"), 1.0)
    answer.take(b"[DONE]", 2.0)
    assert timeline.reason == "no usage"
    timeline, answer = begin(tells_usage=False)
    answer.take(chunk(" a", finish="stop"), 1.0)
    answer.take(b"[DONE]", 2.0)
    assert (timeline.outcome, timeline.usage) == (Outcome.COMPLETED, None)
    timeline, answer = begin()
    answer.take(chunk(" a", first=7), 1.0)
    assert timeline.reason == "event not understood"
    assert timeline.ended_at == 1.0
    assert answer.turn() is None


def test_who_leaves_does_so_after_so_many_tokens() -> None:
    timeline, answer = begin(leave_after=3)
    for at in range(4):
        answer.take(chunk(" a"), float(at))
    assert (timeline.outcome, timeline.ended_at) == (Outcome.LEFT, 2.0)
    assert timeline.piece_times == [[0.0, 1.0, 2.0]]
    timeline, answer = begin(leave_after=3, so_far=True)
    answer.take(chunk(" a b", tokens=2), 0.0)
    assert not answer.is_over
    answer.take(chunk(" c d", tokens=4), 1.0)
    assert timeline.outcome is Outcome.LEFT


def test_what_comes_after_the_end_changes_nothing() -> None:
    timeline, answer = begin()
    answer.fail("timeout", 1.0)
    assert answer.take(chunk(" a", tokens=3), 2.0) == 0
    answer.take_end(3.0)
    answer.fail("connection reset", 4.0)
    assert (timeline.outcome, timeline.reason, timeline.ended_at) == (Outcome.FAILED, "timeout", 1.0)
    assert timeline.usage is None
