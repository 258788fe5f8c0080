"""How much of a schema or another grammar a request may bring, and what of it says nothing.

Pure; runs on offload threads.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.messages import Grammar
from gateway.errors import bad_request

MAX_GRAMMAR_BYTES = 64 * 1024
MAX_FORCED_BYTES = 256 * 1024  # of what the schemas of many tools make together
MAX_DEPTH = 64
# Formats that answers keep to.
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
# Keywords whose members are named by the schema's author.
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples"}


def sized(
    kind: Literal["json_schema", "regex", "lark"], text: str, param: str, limit: int = MAX_GRAMMAR_BYTES
) -> Grammar:
    """Raises ApiError for a text of more than ``limit`` bytes, and for none."""
    size = len(text.encode())
    if size > limit:
        raise bad_request(param, f"'{param}' has {size} bytes of grammar; {limit} are taken at most.")
    if not text:
        raise bad_request(param, f"'{param}' is empty.")
    return Grammar(kind, text)


def check_schema(schema: dict[str, Any], param: str) -> None:
    """A schema as it comes from a client: its size and its depth. Raises ApiError."""
    too_deep = bad_request(param, f"'{param}' is nested more than {MAX_DEPTH} levels deep.")
    try:
        text = msgspec.json.encode(schema).decode()
    except RecursionError:
        raise too_deep from None
    sized("json_schema", text, param)  # before the work of looking at all of it
    if not _is_shallow(schema):
        raise too_deep


def schema_grammar(schema: dict[str, Any], param: str) -> Grammar:
    """The same, as what an answer is to keep to. Raises ApiError."""
    check_schema(schema, param)
    return Grammar("json_schema", msgspec.json.encode(without_notes(schema)).decode())


def without_notes(schema: Any) -> Any:
    """A schema without what changes nothing: formats that nobody checks, ``uniqueItems`` that is false.

    JSON Schema has unknown formats as notes to the reader; pydantic writes some. Depth was bounded before.
    """
    if isinstance(schema, list):
        return [without_notes(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            plain[key] = {name: without_notes(item) for name, item in value.items()}
        elif key in _DATA:
            plain[key] = value
        elif not _is_note(key, value):
            plain[key] = without_notes(value)
    return plain


def _is_note(key: str, value: Any) -> bool:
    is_unknown = key == "format" and isinstance(value, str) and value not in _FORMATS
    return is_unknown or (key == "uniqueItems" and value is False)


def _is_shallow(value: Any) -> bool:
    """Whether objects and arrays are nested within the limit. Without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return True
    return False


def _children(node: dict[str, Any] | list[Any]) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else node
