"""Makes generated bodies affordable, and agree with themselves, which a JSON Schema cannot ask for."""

from __future__ import annotations

from typing import Any

MAX_TOKENS, MAX_PROMPTS, MAX_MESSAGES = 2, 2, 3
_FORMS: dict[str, Any] = {
    "guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "guided_regex": "[a-c]{1,9}",
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'start: "a" | "b"',
}
_USAGE = ("include_usage", "continuous_usage_stats")
_DRAWING = ("temperature", "top_p", "top_k", "min_p", "stop")


def bound(path: str, body: Any) -> None:
    """Keep what a body asks for short."""
    if not isinstance(body, dict):
        return
    for name in body:
        body[name] = whole(body[name])
    if path.startswith("/v1/"):
        for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
            if isinstance(body.get(name), int):
                body[name] = min(body[name], MAX_TOKENS)
        if body.get("max_tokens") is None:
            body["max_tokens"] = MAX_TOKENS
    if isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], int):
        body["prompt"] = body["prompt"][:MAX_PROMPTS]


def settle(path: str, body: Any) -> None:
    """Leave out or add what the rest of a body asks for."""
    bound(path, body)
    if path == "/tokenize":
        _settle_source(body)
    if body.get("messages") is not None:
        body["messages"] = body["messages"][:MAX_MESSAGES]
        _settle_tools(body)
        _settle_continuation(body)
    if path.startswith("/v1/"):
        _settle_lengths(body)
        _settle_form(body)
        _settle_choices(body)
        _settle_prompt(body)
        if body.get("top_logprobs"):
            body["logprobs"] = True
        if any((body.get("stream_options") or {}).get(name) for name in _USAGE):
            body["stream"] = True
            body.pop("prompt_logprobs", None)
        if isinstance(body.get("prompt"), list):
            body["prompt"] = [prompt if prompt != "" else "x" for prompt in body["prompt"]]


def _settle_source(body: dict[str, Any]) -> None:
    if body.get("messages") is not None:
        body.pop("prompt", None)
    elif body.get("prompt") is None:
        body["prompt"] = "x"


def _settle_lengths(body: dict[str, Any]) -> None:
    longest = body.get("max_completion_tokens") or body["max_tokens"]
    if body.get("min_tokens"):
        body["min_tokens"] = min(body["min_tokens"], longest)


def _settle_prompt(body: dict[str, Any]) -> None:
    if body.get("use_beam_search") or not body.get("echo"):
        body["max_tokens"] = body["max_tokens"] or 1
    if body.get("stream"):
        body.pop("prompt_logprobs", None)


def _settle_choices(body: dict[str, Any]) -> None:
    n = body.get("n") or 1
    if body.get("best_of"):
        body["best_of"] = max(body["best_of"], n)
    if body.get("use_beam_search"):
        if max(n, body.get("best_of") or 1) < 2:
            body["n"], body["best_of"] = 2, None
        for name in _DRAWING:
            body.pop(name, None)
        return
    for name in ("length_penalty", "early_stopping"):
        body.pop(name, None)
    if body.get("stream"):
        body.pop("best_of", None)


def _settle_form(body: dict[str, Any]) -> None:
    """The first of the forms that are wished for, if any, as one that can be kept to; alone."""
    wish = None
    if (body.get("response_format") or {}).get("type", "text") != "text":
        wish = "response_format"
        body[wish] = {"type": "json_schema", "json_schema": {"name": "n", "schema": _FORMS["guided_json"]}}
    elif body.get("structured_outputs") is not None:
        wish = "structured_outputs"
        name = next((name for name, value in body[wish].items() if value), "json_object")
        body[wish] = {name: _FORMS.get(f"guided_{name}", True)}
    else:
        wish = next((name for name in _FORMS if body.get(name) is not None), None)
        body.update({wish: _FORMS[wish]} if wish is not None else {})
    for name in ("response_format", "structured_outputs", *_FORMS):
        if name != wish:
            body.pop(name, None)
    if wish is not None:
        for name in ("ignore_eos", "use_beam_search", "tools", "tool_choice", "functions", "function_call"):
            body.pop(name, None)


def _settle_tools(body: dict[str, Any]) -> None:
    """At most two, of different names; what is chosen is one of them, and no beams go with that."""
    functions = [tool["function"] for tool in _shortened(body, "tools")]
    if functions:
        body.pop("functions", None)
    choice = "tool_choice" if functions else "function_call"
    functions = functions or _shortened(body, "functions")
    for number, function in enumerate(functions):
        function["name"] = f"f{number}"
    for name in ("tool_choice", "function_call"):
        if name != choice or not functions:
            body.pop(name, None)
    if isinstance(body.get(choice), dict):
        named = {"name": "f0"}
        body[choice] = {"type": "function", "function": named} if choice == "tool_choice" else named
    if body.get(choice) not in (None, "auto", "none"):
        body.pop("use_beam_search", None)


def _shortened(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    if body.get(name):
        body[name] = body[name][:2]
    return body.get(name) or []


def _settle_continuation(body: dict[str, Any]) -> None:
    if body.get("continue_final_message"):
        body["messages"].append({"role": "assistant", "content": "Well"})
        body.pop("add_generation_prompt", None)


def whole(value: Any) -> Any:
    """The same with numbers that JSON Schema takes for whole written as whole."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value
