"""The grammar of an answer that must be a tool call.

Pure; runs on offload threads. A named function's answer is its arguments alone; any other forced one is an
array of ``{"name", "arguments"}``. Every answer of the grammar is valid by the function's own schema.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.messages import Grammar
from gateway.openai.schema_limits import MAX_FORCED_BYTES, sized, without_notes
from gateway.openai.tools import FunctionSpec, ToolUse

# With one of these a schema says itself what else its objects may have.
_OPEN_ENDED = {"additionalProperties", "patternProperties", "unevaluatedProperties"}
_OPEN_ENDED |= {"allOf", "anyOf", "oneOf", "$ref", "if"}


def forced_grammar(use: ToolUse) -> Grammar:
    """For a use that is forced. Raises ApiError if its schemas are too much together."""
    assert use.is_forced
    if use.named is not None:
        (function,) = (function for function in use.functions if function.name == use.named)
        schema = _parameters(function)
    else:
        schema = _calls(use)
    return _sized(schema, use)


def _sized(schema: Any, use: ToolUse) -> Grammar:
    return sized("json_schema", msgspec.json.encode(schema).decode(), use.param, MAX_FORCED_BYTES)


def _calls(use: ToolUse) -> dict[str, Any]:
    """Schemas of all functions move into one; references inside them move along. Raises ApiError."""
    _sized([function.parameters for function in use.functions], use)  # before the work of moving them
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(i, function) for i, function in enumerate(use.functions)]},
        "$defs": {
            f"f{i}": _moved(_parameters(function), f"#/$defs/f{i}")
            for i, function in enumerate(use.functions)
        },
    }
    if not use.is_parallel:
        schema["maxItems"] = 1
    return schema


def _call(number: int, function: FunctionSpec) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": {"$ref": f"#/$defs/f{number}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _parameters(function: FunctionSpec) -> dict[str, Any]:
    """A function's schema, without properties that it does not name, unless it says something of them."""
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = {"type": "object", **without_notes(function.parameters)}
    if "properties" in schema and not _OPEN_ENDED & schema.keys():
        schema["additionalProperties"] = False
    return schema


def _moved(value: Any, to: str) -> Any:
    """The same schema at another place of the document. Its depth was bounded before."""
    if isinstance(value, list):
        return [_moved(item, to) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(item, to) for key, item in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = to + reference[1:]
    return moved
