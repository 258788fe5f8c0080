"""Calls as Mistral's models write them, after ``[TOOL_CALLS]``, which is a special token. Pure.

Older models write a JSON array of ``{"name": ..., "arguments": {...}}``, newer ones ``NAME[ARGS]{...}``, or
without ``[ARGS]``, and a mark before each call.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import ClassVar

from gateway.tools.base import CallReader, Fed, MarkedCalls, Outcome
from gateway.tools.call_list import CallList
from gateway.tools.json_calls import BareArguments, CallObject

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_MAX_HEAD = 256  # characters of a name with an id
_HEAD = re.compile(r"\s*([A-Za-z0-9_-]+)\s*(?:\[CALL_ID\]\s*[A-Za-z0-9_-]*\s*)?(?:\[ARGS\]\s*)?(?=\{)")


class MistralParser(MarkedCalls):
    """Both forms. Its chat templates take ids of nine letters and digits only."""

    marks: ClassVar[tuple[str, ...]] = (CALLS, CALL_ID, ARGUMENTS)

    def __init__(self, names: Collection[str]) -> None:
        super().__init__({CALLS: lambda: _MistralCalls(names)})


class _MistralCalls:
    """What follows a mark: which form it is shows in the first character."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._form: CallReader | None = None

    def feed(self, text: str) -> Fed:
        if self._form is None:
            first = text.lstrip()[:1]
            if not first:
                return Fed(0, Outcome.MORE)
            self._form = self._form_of(first)
        return self._form.feed(text)

    def _form_of(self, first: str) -> CallReader:
        make_object = partial(CallObject, self._names)
        if first == "[":
            return CallList(make_object, opening="[", separator=",", closing="]")
        return CallList(make_object) if first == "{" else _NamedCall(self._names)


class _NamedCall:
    """``NAME[CALL_ID]ID[ARGS]{...}``, of which the parts in brackets may be missing."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._arguments: BareArguments | None = None

    def feed(self, text: str) -> Fed:
        if self._arguments is not None:
            return self._arguments.feed(text)
        if text.find("{", 0, _MAX_HEAD) < 0:
            return Fed(0, Outcome.MORE if len(text) < _MAX_HEAD else Outcome.FAILED)
        head = _HEAD.match(text)
        if head is None or head.group(1) not in self._names:
            return Fed(0, Outcome.FAILED)
        self._arguments = BareArguments(head.group(1))
        return Fed(head.end(), Outcome.MORE)
