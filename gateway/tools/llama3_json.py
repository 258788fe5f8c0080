"""Calls as Llama 3.1 to 3.3 write them: the answer is ``{"name": ..., "parameters": {...}}``. Pure.

Several are told apart by semicolons. ``<|python_tag|>``, a special token, may stand before them, and then
they may come after some text.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import ClassVar

from gateway.tools.base import MarkedCalls
from gateway.tools.call_list import CallList
from gateway.tools.json_calls import CallObject

PYTHON_TAG = "<|python_tag|>"


class Llama3JsonParser(MarkedCalls):
    """JSON at the beginning that names no tool is content, like all that follows it."""

    marks: ClassVar[tuple[str, ...]] = (PYTHON_TAG,)

    def __init__(self, names: Collection[str]) -> None:
        make_calls = partial(CallList, partial(CallObject, names), separator=";")
        super().__init__({PYTHON_TAG: make_calls}, at_start=make_calls)
