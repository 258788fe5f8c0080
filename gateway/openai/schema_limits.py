"""How much of a schema or another grammar a request may bring. Pure; runs on offload threads."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.messages import Grammar
from gateway.errors import bad_request

MAX_GRAMMAR_BYTES = 64 * 1024
MAX_FORCED_BYTES = 256 * 1024  # of what the schemas of many tools make together
MAX_DEPTH = 64


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


def schema_grammar(schema: dict[str, Any], param: str) -> Grammar:
    """A schema as it comes from a client, its size and depth checked. Raises ApiError."""
    too_deep = bad_request(param, f"'{param}' is nested more than {MAX_DEPTH} levels deep.")
    try:
        text = msgspec.json.encode(schema).decode()
    except RecursionError:
        raise too_deep from None
    grammar = sized("json_schema", text, param)  # before the work of looking at all of it
    if not _is_shallow(schema):
        raise too_deep
    return grammar


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
