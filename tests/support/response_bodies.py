"""Makes generated bodies of /v1/responses affordable, and agree with themselves and with what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.bodies import MAX_MESSAGES, MAX_TOKENS, whole

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def bound_response(body: Any) -> None:
    """Keep what a body asks for short."""
    if not isinstance(body, dict):
        return
    for name in body:
        body[name] = whole(body[name])
    for name in ("max_output_tokens", "min_tokens"):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], MAX_TOKENS)
    if body.get("max_output_tokens") is None:
        body["max_output_tokens"] = MAX_TOKENS


def settle_response(body: dict[str, Any], known_ids: Sequence[str]) -> None:
    """Leave out or add what the rest of a body asks for; most go on from a response that is kept."""
    bound_response(body)
    body.pop("conversation", None)
    body.pop("previous_response_id", None)
    if known_ids and len(body) % 3:
        body["previous_response_id"] = known_ids[len(body) % len(known_ids)]
    if isinstance(body.get("input"), list):
        body["input"] = _settled_items(body["input"][:MAX_MESSAGES])
    if not body.get("input"):
        body["input"] = "x"
    if body.get("background"):
        body["store"] = True
    if body.get("stream_options") is not None:
        body["stream"] = True
    if body.get("min_tokens"):
        body["min_tokens"] = min(body["min_tokens"], body["max_output_tokens"])
    _settle_options(body)
    _settle_form(body)
    _settle_tools(body)


def _settled_items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With what the type of each asks for; a result follows its call."""
    settled: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        kind, call_id = item.get("type", "message"), f"c{number}"
        if kind == "message":
            item["role"], item["content"] = item.get("role") or "user", _text(item.get("content")) or "x"
        elif kind == "reasoning":
            item["content"] = _text(item.get("content"))
        else:
            settled.append({"type": "function_call", "call_id": call_id, "name": "f0", "arguments": "{}"})
            if kind == "function_call":
                continue
            item["call_id"], item["output"] = call_id, _text(item.get("output")) or "x"
        settled.append(item)
    return settled


def _text(content: Any) -> Any:
    """Content whose parts have what their type asks for."""
    if not isinstance(content, list):
        return content
    return [
        {**part, "text": part.get("text") or "x", "refusal": part.get("refusal") or "x"} for part in content
    ]


def _settle_options(body: dict[str, Any]) -> None:
    """Only times that the official client has a type for."""
    options = body.get("prompt_cache_options")
    if options is not None and options.get("ttl") is not None:
        options["ttl"] = "30m"


def _settle_form(body: dict[str, Any]) -> None:
    wanted = (body.get("text") or {}).get("format")
    if wanted is None or wanted["type"] == "text":
        return
    if wanted["type"] == "json_schema":
        body["text"]["format"] = {"type": "json_schema", "name": "n", "schema": _SCHEMA}
    for name in ("ignore_eos", "tools", "tool_choice"):
        body.pop(name, None)


def _settle_tools(body: dict[str, Any]) -> None:
    tools = (body.get("tools") or [])[:2]
    if not tools:
        body.pop("tool_choice", None)
        return
    body["tools"] = tools
    for number, tool in enumerate(tools):
        tool["name"] = f"f{number}"
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice["type"] == "function":
        choice["name"] = "f0"
    elif isinstance(choice, dict):
        choice["tools"] = [{"type": "function", "name": "f0"}]
