"""Calls that a grammar enforced: the arguments of a named function, or an array of calls. Pure."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import ClassVar

from gateway.tools.base import MarkedCalls
from gateway.tools.call_list import CallList
from gateway.tools.json_calls import BareArguments, CallObject


class NamedCallParser(MarkedCalls):
    """The answer is one JSON object: the arguments of ``name``."""

    marks: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str) -> None:
        super().__init__({}, at_start=partial(BareArguments, name))


class RequiredCallsParser(MarkedCalls):
    """The answer is a JSON array of calls."""

    marks: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Collection[str]) -> None:
        make_object = partial(CallObject, names)
        super().__init__({}, at_start=partial(CallList, make_object, opening="[", separator=",", closing="]"))
