"""Find stop strings in text that arrives in pieces, and never let part of one through.

Pure and incremental; runs on the event loop, cost linear in the text whatever the stop strings are
(one Knuth-Morris-Pratt automaton per stop string). The result depends on the text alone, never on
how it is split: the match that *completes* first wins, and of two that complete on the same
character the longer. Invariant: what is held back is the longest tail of the text that is a proper
prefix of some stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Automaton:
    """Tracks the longest tail of the text seen that is a prefix of one stop string."""

    __slots__ = ("_failure", "matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._failure = _failure_table(pattern)

    def advance(self, char: str) -> bool:
        """Take one character; True when the pattern is complete."""
        matched = self.matched
        while matched and self.pattern[matched] != char:
            matched = self._failure[matched - 1]
        if self.pattern[matched] == char:
            matched += 1
        self.matched = matched
        return matched == len(self.pattern)


def _failure_table(pattern: str) -> list[int]:
    table = [0] * len(pattern)
    border = 0
    for i in range(1, len(pattern)):
        while border and pattern[border] != pattern[i]:
            border = table[border - 1]
        if pattern[border] == pattern[i]:
            border += 1
        table[i] = border
    return table


class StopMatcher:
    """Cuts a text before the first stop string, or behind it with ``keeps_match``.

    Feed it with ``push``, end it with ``flush``.
    """

    def __init__(self, stops: Sequence[str], *, keeps_match: bool = False) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._keeps_match = keeps_match
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text and return what can be shown now. Nothing comes after a match."""
        if self.matched is not None:
            return ""
        seen = self._held + text
        for i, char in enumerate(text, start=len(self._held)):
            complete = [a.pattern for a in self._automata if a.advance(char)]
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return seen[: i + 1 if self._keeps_match else i + 1 - len(self.matched)]
        keep = max((a.matched for a in self._automata), default=0)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]

    def flush(self) -> str:
        """The text is over: what was held back is no stop string after all."""
        held, self._held = self._held, ""
        return held
