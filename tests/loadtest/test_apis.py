"""What is asked for, and what events are taken to say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest.drivers.apis import Api, Options, Piece, Told, api_of
from loadtest.drivers.base import PastTurn
from loadtest.drivers.target import ApiName, Target, TransportName
from loadtest.plan import PlannedRequest
from loadtest.timeline import Usage

URL = "http://127.0.0.1:1"
ALL = Options(tells_usage=True, tells_usage_so_far=True, ignores_eos=True, keeps_responses=True)
PLANNED = PlannedRequest(0, "three small words", input_len=13, output_len=7)
PAST = (PastTurn("question", " answer", "resp_1"),)


def api(name: ApiName, options: Options = ALL, transport: TransportName = "sse", **extra: Any) -> Api:
    return api_of(Target(URL, "m", api=name, transport=transport, extra=extra), options)


def read(name: ApiName, event: dict[str, Any]) -> Told:
    return api(name).read(json.dumps(event).encode())


# ---- bodies ------------------------------------------------------------------------------------


def test_a_chat_asks_for_all_that_the_server_takes() -> None:
    assert api("chat").body(PLANNED, ()) == {
        "model": "m",
        "messages": [{"role": "user", "content": "three small words"}],
        "stream": True,
        "max_tokens": 7,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
    }


def test_a_bare_server_is_asked_for_nothing_beside_the_answer() -> None:
    body = api("completions", Options()).body(PLANNED, ())
    assert body == {"model": "m", "prompt": "three small words", "stream": True, "max_tokens": 7}


def test_least_tokens_are_asked_for_only_where_the_end_cannot_be_ignored() -> None:
    assert api("chat", Options(keeps_min_tokens=True)).body(PLANNED, ())["min_tokens"] == 7
    assert "min_tokens" not in api("chat", Options(keeps_min_tokens=True, ignores_eos=True)).body(PLANNED, ())


def test_what_the_user_adds_stands_in_every_body() -> None:
    assert api("chat", temperature=0).body(PLANNED, ())["temperature"] == 0
    assert api("responses", max_output_tokens=3).body(PLANNED, ())["max_output_tokens"] == 3


def test_several_answers_and_a_servers_own_name_for_the_length() -> None:
    planned = PlannedRequest(0, "x", 1, 5, n=3)
    body = api("chat", Options(length_field="max_completion_tokens")).body(planned, ())
    assert body["n"] == 3
    assert body["max_completion_tokens"] == 5
    assert "max_tokens" not in body


def test_a_history_is_messages_or_text_or_an_id() -> None:
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": " answer"},
        {"role": "user", "content": "three small words"},
    ]
    assert api("chat").body(PLANNED, PAST)["messages"] == messages
    assert api("completions").body(PLANNED, PAST)["prompt"] == "question answer three small words"
    kept = api("responses").body(PLANNED, PAST)
    assert (kept["previous_response_id"], kept["input"]) == ("resp_1", "three small words")
    told = api("responses", Options()).body(PLANNED, PAST)
    said = {"type": "output_text", "text": " answer", "annotations": []}
    answer = {"type": "message", "role": "assistant", "status": "completed", "content": [said]}
    assert told["input"] == [messages[0], answer, messages[2]]
    assert "previous_response_id" not in told


def test_over_a_websocket_streaming_goes_without_saying() -> None:
    assert "stream" in api("responses").body(PLANNED, ())
    assert "stream" not in api("responses", transport="ws").body(PLANNED, ())


# ---- events ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "pieces"),
    [
        ({"role": "assistant", "content": ""}, []),
        ({"content": "a"}, [Piece(1, "a")]),
        ({"content": None, "reasoning_content": "hm"}, [Piece(1, "")]),
        ({"reasoning": "hm", "reasoning_content": "hm"}, [Piece(1, "")]),
        ({"tool_calls": [{"index": 0}]}, [Piece(1, "")]),
        ({}, []),
    ],
)
def test_a_chats_pieces_are_chunks_with_text(delta: dict[str, Any], pieces: list[Piece]) -> None:
    told = read("chat", {"choices": [{"index": 1, "delta": delta, "finish_reason": None}]})
    assert list(told.pieces) == pieces
    assert not told.finishes and told.usage is None and not told.is_last


def test_usage_comes_on_any_chunk() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}
    told = read("completions", {"choices": [{"index": 0, "text": "a"}], "usage": usage})
    assert told.usage == Usage(9, 4, 8)
    bare = {"prompt_tokens": 9, "completion_tokens": 4}
    assert read("chat", {"choices": [], "usage": bare}).usage == Usage(9, 4, None)


def test_the_end_of_a_choice_and_of_a_stream() -> None:
    told = read("completions", {"choices": [{"index": 0, "text": " a", "finish_reason": "length"}]})
    assert list(told.pieces) == [Piece(0, " a")]
    assert list(told.finishes) == [(0, "length")]
    assert api("chat").read(b"[DONE]").is_last


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"error": {"code": "engine_dead", "type": "server_error"}}, "error in stream: engine_dead"),
        ({"error": {"code": 500, "type": "server_error"}}, "error in stream: server_error"),
        ({"error": {"message": "it broke\nat 5"}}, "error in stream: it broke"),
        ({"error": "it broke"}, "error in stream: it broke"),
        (
            {"choices": [{"delta": {}, "finish_reason": "abort"}]},
            "error in stream: finish reason abort",
        ),
        ({"choices": "?"}, "event not understood"),
    ],
)
def test_errors_in_a_stream_have_a_stable_name(event: dict[str, Any], reason: str) -> None:
    assert read("chat", event).failure == reason


def test_what_is_not_json_is_not_understood() -> None:
    assert api("chat").read(b"{").failure == "event not understood"
    assert api("responses").read(b"[" * 100_000).failure == "event not understood"


def test_the_events_of_a_response() -> None:
    assert read("responses", {"type": "response.created", "response": {"id": "r"}}).response_id == "r"
    told = read("responses", {"type": "response.output_text.delta", "delta": "a"})
    assert list(told.pieces) == [Piece(0, "a")]
    told = read("responses", {"type": "response.reasoning_text.delta", "delta": "a"})
    assert list(told.pieces) == [Piece(0, "")]
    assert read("responses", {"type": "response.output_text.done", "text": "a"}) == Told()
    assert read("responses", {"type": "something.new", "delta": {"x": 1}}) == Told()


def test_a_response_whose_text_is_none_is_not_understood() -> None:
    assert read("responses", {"type": "response.output_text.delta", "delta": {"a": 1}}).failure == (
        "event not understood"
    )


def test_the_last_mark_may_have_space_around_it() -> None:
    assert api("chat").read(b"[DONE] ").is_last
    assert api("responses").read(b" [DONE]") == Told()


@pytest.mark.parametrize(
    ("kind", "details", "finish"),
    [
        ("response.completed", None, "stop"),
        ("response.incomplete", {"reason": "max_output_tokens"}, "length"),
        ("response.incomplete", {"reason": "content_filter"}, "content_filter"),
    ],
)
def test_the_end_of_a_response(kind: str, details: dict[str, str] | None, finish: str) -> None:
    usage = {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}
    told = read(
        "responses", {"type": kind, "response": {"id": "r", "usage": usage, "incomplete_details": details}}
    )
    assert told == Told((), ((0, finish),), Usage(9, 4, 2), "r", is_last=True)


def test_a_response_that_fails_and_one_that_is_refused() -> None:
    error = {"code": "server_error", "message": "it broke"}
    told = read("responses", {"type": "response.failed", "response": {"id": "r", "error": error}})
    assert (told.failure, told.is_last) == ("error in stream: server_error", True)
    told = read("responses", {"type": "error", "status": 429, "error": {"code": "rate_limit_exceeded"}})
    assert (told.failure, told.is_last) == ("http 429 rate_limit_exceeded", True)
    assert read("responses", {"type": "error", "code": "x_y"}).failure == "error in stream: x_y"


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("chat", {"error": {"message": "bad key sk-very-secret\x1b[31m"}}),
        ("responses", {"type": "error", "message": "bad key sk-very-secret\x1b[31m"}),
        (
            "responses",
            {"type": "response.failed", "response": {"error": {"message": "bad key sk-very-secret\x1b[31m"}}},
        ),
    ],
)
def test_a_failure_repeats_no_secret_and_nothing_that_changes_a_terminal(
    name: ApiName, event: dict[str, Any]
) -> None:
    target = Target(URL, "m", api=name, headers={"Authorization": "Bearer sk-very-secret"})
    told = api_of(target, ALL).read(json.dumps(event).encode())
    assert told.failure == "error in stream: bad key ***?[31m"
