"""The events of a response: numbered without a gap, whole, and as OpenAI's own client takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from engine.messages import TokenLogprobs
from gateway.answer import CallPiece, Piece, TokenEntry
from gateway.detokenizer import build_token_table
from gateway.openai.responses.events import Event, ResponseEvents
from gateway.openai.responses.items import OutputItem
from gateway.openai.responses.shape import ResponseObject, ShownFormat, ShownReasoning, ShownText
from tests.support.openai_models import check_event
from tests.support.tiny_tokenizers import byte_level

TABLE = build_token_table(json.loads(byte_level().to_str()))
DRAFT = ResponseObject(
    id="resp_1", created_at=1, status="in_progress", model="tiny", reasoning=ShownReasoning(),
    service_tier="default", temperature=1.0, text=ShownText(ShownFormat()), tool_choice="auto", top_p=1.0,
)  # fmt: skip
_SDK: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


# ---- what a model may write ------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    text: str


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class CallStart:
    name: str


@dataclass(frozen=True)
class Arguments:
    text: str


Step = Said | Thought | CallStart | Arguments
TEXT = st.text(min_size=1, max_size=5)
CALL = st.tuples(st.sampled_from("fg"), st.lists(TEXT, max_size=3)).map(
    lambda call: [CallStart(call[0]), *map(Arguments, call[1])]
)
ANSWERS = st.tuples(
    st.lists(TEXT.map(Thought), max_size=3), st.lists(TEXT.map(lambda text: [Said(text)]) | CALL, max_size=6)
).map(lambda parts: [*parts[0], *(step for steps in parts[1] for step in steps)])


def pieces(steps: Sequence[Step], sizes: Sequence[int]) -> list[Piece]:
    """The answer, so many steps to a piece. A thought is told before whatever is in the same piece."""
    rest, found, number = list(steps), list[Piece](), -1
    for size in [*sizes, len(rest)]:
        text, thought, calls = "", "", list[CallPiece]()
        for step in rest[:size]:
            if isinstance(step, Said):
                text += step.text
            elif isinstance(step, Thought):
                thought += step.text
            elif isinstance(step, CallStart):
                number += 1
                calls.append(CallPiece(number, "", step.name, f"c{number}", len(text)))
            else:
                calls.append(CallPiece(number, step.text, text_before=len(text)))
        found.append(Piece(text, (), thought, tuple(calls)))
        del rest[:size]
    return found


def events_of(answer: Sequence[Piece], num_top: int | None = None) -> tuple[list[Event], list[OutputItem]]:
    """All of a response that ends by itself."""
    events = ResponseEvents(TABLE, num_top)
    told = [events.about("response.created", DRAFT), events.about("response.in_progress", DRAFT)]
    for piece in answer:
        told += events.piece(piece)
    told += [*events.nothing_said(), *events.close_item("completed")]
    ended = msgspec.structs.replace(DRAFT, status="completed", output=events.output)
    return [*told, events.about("response.completed", ended)], events.output


def expected(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """Items as type and text, from the steps alone."""
    found: list[tuple[str, str]] = []
    for step in steps:
        kind = {Said: "message", Thought: "reasoning"}.get(type(step), "function_call")
        if isinstance(step, CallStart):
            found.append((kind, ""))
        elif found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + step.text)
        else:
            found.append((kind, step.text))
    return found or [("message", "")]


def texts(items: Sequence[Any]) -> list[tuple[str, str]]:
    """The same of items as JSON."""
    return [
        (item["type"], item["arguments"])
        if item["type"] == "function_call"
        else (item["type"], "".join(part["text"] for part in item["content"]))
        for item in items
    ]


def deltas(events: Sequence[Any]) -> list[tuple[str, str]]:
    """The same of a stream's deltas; what an item's end repeats must be what they join to."""
    found: dict[int, tuple[str, str]] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(found)
            found[event["output_index"]] = (event["item"]["type"], "")
        elif event["type"].endswith(".delta"):
            kind, text = found[event["output_index"]]
            found[event["output_index"]] = (kind, text + event["delta"])
        elif event["type"].endswith(("_text.done", "arguments.done")):
            assert event.get("text", event.get("arguments")) == found[event["output_index"]][1]
    return list(found.values())


# ---- any answer ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 4), max_size=8))
def test_any_answer_however_it_is_cut(steps: list[Step], sizes: list[int]) -> None:
    told, output = events_of(pieces(steps, sizes))
    events = [json.loads(event.data) for event in told]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(
        (event.type, event.sequence_number) == (e["type"], e["sequence_number"])
        for event, e in zip(told, events, strict=True)
    )
    assert texts(events[-1]["response"]["output"]) == deltas(events) == expected(steps)
    assert all(item.status == "completed" for item in output)
    assert [event.is_last for event in told] == [False] * (len(told) - 1) + [True]


@settings(deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 4), max_size=8))
def test_openais_client_takes_it_and_puts_it_together(steps: list[Step], sizes: list[int]) -> None:
    told, output = events_of(pieces(steps, sizes))
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    last: Any = None
    for event in told:
        check_event(json.loads(event.data))
        (last,) = state.handle_event(_SDK.validate_json(event.data)) or (None,)
    assert last.type == "response.completed"
    assert [(item.type, item.id) for item in last.response.output] == [
        (item.__struct_config__.tag, item.id) for item in output
    ]


@settings(deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 4), max_size=8))
def test_every_item_opens_once_and_closes_before_the_next(steps: list[Step], sizes: list[int]) -> None:
    told, _ = events_of(pieces(steps, sizes))
    is_open: str | None = None
    for event in told:
        body = json.loads(event.data)
        if body["type"] == "response.output_item.added":
            assert is_open is None
            is_open = body["item"]["id"]
            assert body["item"]["status"] == "in_progress"
        elif body["type"] == "response.output_item.done":
            assert is_open == body["item"]["id"]
            is_open = None
        elif "item_id" in body:
            assert is_open == body["item_id"]
    assert is_open is None


# ---- one by one ------------------------------------------------------------------------------------


def kinds(told: Sequence[Event]) -> list[str]:
    return [event.type.removeprefix("response.") for event in told]


def test_a_thought_a_word_and_a_call_in_this_order() -> None:
    steps = [Thought("hm"), Said("Well."), CallStart("f"), Arguments("{}")]
    for sizes in ([4], [1, 1, 1, 1]):
        told, _ = events_of(pieces(steps, sizes))
        assert kinds(told) == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "reasoning_text.delta",
            "reasoning_text.done", "content_part.done", "output_item.done",
            "output_item.added", "content_part.added", "output_text.delta",
            "output_text.done", "content_part.done", "output_item.done",
            "output_item.added", "function_call_arguments.delta",
            "function_call_arguments.done", "output_item.done",
            "completed",
        ]  # fmt: skip


def test_what_is_said_behind_a_call_in_the_same_moment_stays_behind_it() -> None:
    events = ResponseEvents(TABLE)
    events.piece(Piece(calls=(CallPiece(0, '{"x"', "f", "c0"),)))
    events.piece(Piece("Done.", calls=(CallPiece(0, ": 1}", text_before=0),)))
    events.close_item("completed")
    assert texts(msgspec.to_builtins(events.output)) == [("function_call", '{"x": 1}'), ("message", "Done.")]


def test_an_answer_without_a_word_is_a_message() -> None:
    _, output = events_of([Piece()])
    assert texts(msgspec.to_builtins(output)) == [("message", "")]


def test_an_item_that_was_cut_off_says_so() -> None:
    events = ResponseEvents(TABLE)
    events.piece(Piece("a", calls=(CallPiece(0, "{", "f", "c0", text_before=1),)))
    assert kinds(events.close_item("incomplete"))[-1] == "output_item.done"
    assert [item.status for item in events.output] == ["completed", "incomplete"]
    assert events.close_item("incomplete") == []


def entry(text: str) -> TokenEntry:
    return TokenEntry(
        ord(text[0]), text.encode(), text, TokenLogprobs(-0.5, ((ord("z"), -1.0), (ord("y"), -2.0)))
    )


def test_log_probabilities_go_with_their_text() -> None:
    calls = (CallPiece(0, "{}", "f", "c0", text_before=2), CallPiece(1, "{}", "f", "c1", text_before=3))
    told, output = events_of([Piece("abcd", tuple(map(entry, "abcd")), calls=calls)], num_top=1)
    bodies = [json.loads(event.data) for event in told]
    found = [
        (
            body["delta"],
            [shown["token"] for shown in body["logprobs"]],
            len(body["logprobs"][0]["top_logprobs"]),
        )
        for body in bodies
        if body["type"] == "response.output_text.delta"
    ]
    assert found == [("ab", ["a", "b"], 1), ("c", ["c"], 1), ("d", ["d"], 1)]
    (first, *_) = msgspec.to_builtins(output)
    assert [shown["token"] for shown in first["content"][0]["logprobs"]] == ["a", "b"]
    told, _ = events_of([Piece("ab", tuple(map(entry, "ab")))])
    assert all(not json.loads(event.data).get("logprobs") for event in told)
