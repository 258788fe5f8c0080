"""The Response object: what was left out is told as it took effect, and what becomes of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from gateway.openai.answers import make_usage
from gateway.openai.responses import building
from gateway.openai.responses.endpoint import ResponsesEndpoint
from gateway.openai.responses.items import MessageItem, OutputText
from gateway.openai.responses.shape import ResponseObject, encode_response
from tests.gateway.house import House
from tests.support.openai_models import check_response

Make = Callable[..., Awaitable[House]]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
USAGE = building.response_usage(make_usage(3, 4, 2, 1))


@pytest.fixture
async def endpoint(make_house: Make) -> ResponsesEndpoint:
    house = await make_house(info={"max_model_len": 2048, "num_blocks": 256})
    return ResponsesEndpoint(house.gateway.model, house.gateway.chat)


def drafted(endpoint: ResponsesEndpoint, **fields: Any) -> ResponseObject:
    wire = endpoint.decode(msgspec.json.encode({"input": "Hi", **fields}))
    return building.draft(endpoint.check(wire, ()), "resp_1", 7, "tiny", "default")


async def test_what_was_left_out_is_told_as_it_took_effect(endpoint: ResponsesEndpoint) -> None:
    shown = msgspec.to_builtins(drafted(endpoint))
    check_response(shown)
    told = {
        "status": "in_progress", "background": False, "parallel_tool_calls": True, "store": True,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [],
        "top_logprobs": 0, "truncation": "disabled", "temperature": 1.0, "top_p": 1.0, "metadata": {},
        "usage": None, "output": [], "error": None, "incomplete_details": None, "completed_at": None,
    }  # fmt: skip
    assert {name: shown[name] for name in told} == told


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"text": {"format": {"type": "json_object"}}},
         {"text": {"format": {"type": "json_object"}, "verbosity": "medium"}}),
        ({"text": {"format": SCHEMA}},
         {"text": {"format": {"description": None, **SCHEMA}, "verbosity": "medium"}}),
        ({"tools": [TOOL]}, {"tools": [{**TOOL, "description": None}]}),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
         {"tool_choice": {"type": "function", "name": "f"}}),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required",
                                           "tools": [{"type": "function", "name": "f"}]}},
         {"tool_choice": {"type": "allowed_tools", "mode": "required",
                          "tools": [{"type": "function", "name": "f"}]}}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tool_choice": "required"}),
        ({"prompt_cache_retention": "in-memory"}, {"prompt_cache_retention": "in_memory"}),
        ({"prompt_cache_options": {}}, {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}),
        ({"background": True}, {"background": True, "status": "queued"}),
        ({"conversation": {"id": "conv_1"}}, {"conversation": {"id": "conv_1"}}),
        ({"metadata": {"a": "b"}, "user": "u", "top_logprobs": 2},
         {"metadata": {"a": "b"}, "user": "u", "top_logprobs": 2}),
        ({"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "low", "summary": None}}),
    ],
)  # fmt: skip
async def test_what_was_asked_for_is_told(
    endpoint: ResponsesEndpoint, fields: dict[str, Any], told: dict[str, Any]
) -> None:
    response = drafted(endpoint, **fields)
    shown = msgspec.to_builtins(response)
    check_response(shown)
    assert {name: shown[name] for name in told} == told
    assert msgspec.json.decode(encode_response(response), type=ResponseObject) == response


async def test_what_becomes_of_one(endpoint: ResponsesEndpoint) -> None:
    draft = drafted(endpoint)
    output: Any = [MessageItem(id="msg_1", role="assistant", content=[OutputText("a")])]
    ended = building.completed(draft, output, USAGE, 9)
    assert (ended.status, ended.completed_at, ended.output, ended.usage) == ("completed", 9, output, USAGE)
    cut = building.incomplete(draft, output, USAGE, "max_output_tokens")
    assert cut.incomplete_details is not None
    assert (cut.status, cut.incomplete_details.reason, cut.output) == (
        "incomplete",
        "max_output_tokens",
        output,
    )
    failed = building.failed(msgspec.structs.replace(draft, output=output), "server_error", "No.")
    assert failed.error is not None
    assert (failed.status, failed.error.message, failed.output) == ("failed", "No.", [])
    gone = building.cancelled(msgspec.structs.replace(draft, output=output), None)
    assert (gone.status, gone.output, gone.usage) == ("cancelled", [], None)
    for response in (ended, cut, failed, gone):
        check_response(msgspec.to_builtins(response))
    assert (draft.status, draft.output) == ("in_progress", [])


def test_the_figures_have_the_names_of_this_endpoint() -> None:
    assert msgspec.to_builtins(USAGE) == {
        "input_tokens": 3, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 7,
    }  # fmt: skip
    assert building.response_usage(make_usage(3, 4, 2)).output_tokens_details.reasoning_tokens == 0
