"""Where a bracketed or quoted value ends, in text that comes in pieces. Pure.

What is between its brackets is not judged; brackets of any kind close any other.
"""

from __future__ import annotations

import re

_AFTER_SCALAR = re.compile(r"[\s,}\]]")
_OPENING = "{[("


class Extent:
    """Finds the end of a value that begins with ``first``: JSON, or with ``is_python`` a call's arguments."""

    def __init__(self, first: str, *, is_python: bool = False) -> None:
        quotes, brackets = ("\"'", "()") if is_python else ('"', "")
        self._is_scalar = first not in _OPENING + quotes
        self._outside = re.compile("[" + re.escape(quotes + brackets + "{}[]") + "]")
        self._quotes = {quote: re.compile(rf"[{quote}\\]") for quote in quotes}
        self._quote: str | None = None  # that the string under way ends with
        self._escaped = False
        self._depth = 0

    def feed(self, text: str, pos: int) -> int | None:
        """Index behind the value, looking from ``pos`` on; None if it goes on beyond the text."""
        if self._is_scalar:
            match = _AFTER_SCALAR.search(text, pos)
            return None if match is None else match.start()
        while pos < len(text):
            if self._escaped:
                self._escaped = False
                pos += 1
                continue
            match = (self._outside if self._quote is None else self._quotes[self._quote]).search(text, pos)
            if match is None:
                return None
            pos = match.end()
            self._pass(match.group())
            if not self._depth and self._quote is None:
                return pos
        return None

    def _pass(self, char: str) -> None:
        if char == "\\":
            self._escaped = True
        elif char in self._quotes:
            self._quote = char if self._quote is None else None
        else:
            self._depth += 1 if char in _OPENING else -1
