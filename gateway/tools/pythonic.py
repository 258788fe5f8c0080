"""Calls as Llama 4 writes them: the answer is ``[f(a=1, b="x"), g()]``. Pure.

The arguments of a call become JSON, so they come when the call is complete.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import ClassVar

import msgspec

from gateway.tools.base import CallArguments, CallStart, Fed, MarkedCalls, Outcome
from gateway.tools.call_list import CallList
from gateway.tools.extent import Extent
from gateway.tools.python_values import NoLiteralError, keyword_arguments

START, END = "<|python_start|>", "<|python_end|>"
_HEAD = re.compile(r"\s*([A-Za-z0-9_-]*)\s*(\()?")
_MAX_NAME = 64


class PythonicParser(MarkedCalls):
    """A list at the beginning that is no list of calls is content, like all that follows it."""

    marks: ClassVar[tuple[str, ...]] = (START, END)

    def __init__(self, names: Collection[str]) -> None:
        make_calls = partial(
            CallList, partial(_PythonCall, names), opening="[", separator=",", closing="]", end=END
        )
        super().__init__({START: make_calls}, at_start=make_calls)


class _PythonCall:
    """``name(key=literal, ...)``, read once its last parenthesis is there."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._name: str | None = None
        self._extent = Extent("(", is_python=True)
        self._arguments: list[str] = []

    def feed(self, text: str) -> Fed:
        if self._name is None:
            return self._feed_name(text)
        end = self._extent.feed(text, 0)
        self._arguments.append(text[:end])
        if end is None:
            return Fed(len(text), Outcome.MORE)
        try:
            arguments = keyword_arguments("".join(self._arguments))
        except NoLiteralError:
            return Fed(end, Outcome.FAILED)
        return Fed(end, Outcome.DONE, [CallStart(self._name), CallArguments(_json(arguments))])

    def _feed_name(self, text: str) -> Fed:
        head = _HEAD.match(text)
        assert head is not None
        name, paren = head.groups()
        if not paren and head.end() == len(text) and len(name) <= _MAX_NAME:
            return Fed(0, Outcome.MORE)
        if not paren or name not in self._names:
            return Fed(0, Outcome.FAILED)
        self._name = name
        return Fed(head.start(2), Outcome.MORE)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
