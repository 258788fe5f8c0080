"""Calls that a grammar enforced: the arguments of a named function, or an array of calls. Pure.

An answer that was cut short ends in half a call. Before its arguments begin that is shown as nothing: it is
neither a call nor something said.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import ClassVar

from gateway.tools.base import Event, MakeReader, MarkedCalls
from gateway.tools.call_list import CallList
from gateway.tools.json_calls import BareArguments, CallObject


class _ForcedCalls(MarkedCalls):
    """Nothing but calls is said."""

    marks: ClassVar[tuple[str, ...]] = ()

    def __init__(self, calls: MakeReader) -> None:
        super().__init__({}, at_start=calls)

    def finish(self) -> list[Event]:
        return []


class NamedCallParser(_ForcedCalls):
    """The answer is one JSON object: the arguments of ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(partial(BareArguments, name))


class RequiredCallsParser(_ForcedCalls):
    """The answer is a JSON array of calls."""

    def __init__(self, names: Collection[str]) -> None:
        make_object = partial(CallObject, names)
        super().__init__(partial(CallList, make_object, opening="[", separator=",", closing="]"))
