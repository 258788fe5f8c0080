"""Log probabilities of an answer's tokens, cut to the parts of the text that are shown.

Pure; runs on the event loop. The entries' texts joined are the text. What is taken from it takes its entries
along; a token that lies across the end of a part is cut there, and what is not taken is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from gateway.answer import TokenEntry, num_bytes_of


class EntryQueue:
    """Entries that wait for their text to be shown or dropped."""

    def __init__(self) -> None:
        self._entries: deque[TokenEntry] = deque()
        self._position = 0  # of the first entry in the text

    def push(self, entries: Iterable[TokenEntry]) -> None:
        self._entries.extend(entries)

    def take(self, start: int, num_chars: int) -> tuple[TokenEntry, ...]:
        """Those of a part of the text; parts come in order. None if none were pushed."""
        self._next(start - self._position)
        return tuple(self._next(num_chars))

    def _next(self, num_chars: int) -> list[TokenEntry]:
        taken: list[TokenEntry] = []
        missing = num_chars
        while missing > 0 and self._entries:
            entry = self._entries.popleft()
            taken.append(entry)
            missing -= len(entry.text)
        if missing < 0:
            taken, rest = _split(taken, num_chars)
            self._entries.extendleft(reversed(rest))
        self._position += num_chars
        while num_chars and self._entries and not (self._entries[0].raw or self._entries[0].text):
            taken.append(self._entries.popleft())  # a special token, which is no text, stays where it is
        return taken


def _split(entries: Sequence[TokenEntry], num_chars: int) -> tuple[list[TokenEntry], list[TokenEntry]]:
    """The entries of the first so many characters, and the rest."""
    num_bytes = num_bytes_of(b"".join(entry.raw for entry in entries), num_chars)
    left, right = [], []
    for entry in entries:
        head = TokenEntry(entry.token_id, entry.raw[:num_bytes], entry.text[:num_chars], entry.logprobs)
        tail = TokenEntry(entry.token_id, entry.raw[num_bytes:], entry.text[num_chars:], entry.logprobs)
        num_bytes = max(num_bytes - len(entry.raw), 0)
        num_chars = max(num_chars - len(entry.text), 0)
        if head.raw or head.text:
            left.append(head)
        if tail.raw or tail.text:
            right.append(tail)
    return left, right
