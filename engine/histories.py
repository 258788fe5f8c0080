"""Tokens of sequences that ended not long ago, so that they can be forked.

Runs on: step thread, sole owner. Bound: ``max_tokens`` over all of them; the oldest requests go first.
"""

from __future__ import annotations

from array import array
from collections import abc

from engine.request import SequenceGroup

_MAX_TOKENS = 2**20


class _History:
    """Of one request: its prompt, which all its sequences share, and their outputs by index."""

    def __init__(self, cache_salt: bytes, prompt_token_ids: tuple[int, ...]) -> None:
        self.cache_salt = cache_salt
        self.prompt_token_ids = prompt_token_ids
        self.outputs: dict[int, array[int]] = {}

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + sum(map(len, self.outputs.values()))


class Histories:
    """Prompt and output by request and sequence, for the tenant with the same ``cache_salt`` only."""

    def __init__(self, max_tokens: int = _MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._kept: dict[str, _History] = {}

    def keep(
        self,
        group: SequenceGroup,
        index: int,
        prompt_token_ids: tuple[int, ...],
        output_token_ids: abc.Sequence[int],
    ) -> None:
        """Remember a sequence that ended."""
        history = self._kept.get(group.request_id)
        if history is None:
            history = self._kept[group.request_id] = _History(group.cache_salt, prompt_token_ids)
            self._num_tokens += len(prompt_token_ids)
        history.outputs[index] = array("i", output_token_ids)
        self._num_tokens += len(output_token_ids)
        while self._num_tokens > self._max_tokens:
            self.forget(next(iter(self._kept)))

    def find(self, request_id: str, index: int, cache_salt: bytes) -> tuple[int, ...] | None:
        """The tokens of a sequence; None if it is not known, or not known to this tenant."""
        history = self._kept.get(request_id)
        if history is None or history.cache_salt != cache_salt or index not in history.outputs:
            return None
        return (*history.prompt_token_ids, *history.outputs[index])

    def forget(self, request_id: str) -> None:
        """Nothing is known of this request any more."""
        history = self._kept.pop(request_id, None)
        if history is not None:
            self._num_tokens -= history.num_tokens
