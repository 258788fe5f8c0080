"""Tokens of sequences that ended not long ago, so that they can be forked.

Runs on: step thread, sole owner. Bound: ``max_tokens`` over all of them; the oldest go first.
"""

from __future__ import annotations

from array import array
from collections import abc

from engine.request import SequenceGroup

_MAX_TOKENS = 2**20  # four bytes each


class Histories:
    """Prompt and output by request and sequence, for the tenant with the same ``cache_salt`` only."""

    def __init__(self, max_tokens: int = _MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._kept: dict[tuple[str, int], tuple[bytes, array[int]]] = {}

    def keep(self, group: SequenceGroup, index: int, token_ids: abc.Sequence[int]) -> None:
        """Remember a sequence that ended."""
        self._drop((group.request_id, index))
        self._kept[group.request_id, index] = (group.cache_salt, array("i", token_ids))
        self._num_tokens += len(token_ids)
        while self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._kept)))

    def find(self, request_id: str, index: int, cache_salt: bytes) -> tuple[int, ...] | None:
        """The tokens of a sequence; None if it is not known, or not known to this tenant."""
        salt, token_ids = self._kept.get((request_id, index), (None, array("i")))
        return tuple(token_ids) if salt == cache_salt else None

    def _drop(self, key: tuple[str, int]) -> None:
        _, token_ids = self._kept.pop(key, (None, array("i")))
        self._num_tokens -= len(token_ids)
