"""Calls as Hermes, Qwen and SmolLM write them: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import ClassVar

from gateway.tools.base import MarkedCalls
from gateway.tools.call_list import CallList
from gateway.tools.json_calls import CallObject

CALL, CALL_END = "<tool_call>", "</tool_call>"


class HermesParser(MarkedCalls):
    """Any number of blocks, anywhere in the text, one call in each."""

    marks: ClassVar[tuple[str, ...]] = (CALL, CALL_END)

    def __init__(self, names: Collection[str]) -> None:
        super().__init__({CALL: lambda: CallList(partial(CallObject, names), end=CALL_END)})
