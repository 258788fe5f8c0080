"""What the engine was lately asked to forget, for the one that takes its place.

Pure: time (seconds, any origin) is passed in. Blocks on disk outlive an engine, and so would those that it
was told to forget in the moment when it died. Forgetting twice costs only what was computed in between.
"""

from __future__ import annotations

from collections import deque

from engine.messages import ForgetKv

_LONG_AGO_S = 10.0  # an engine that lived so long after being asked has done it
_MAX_TOKENS = 2**20


class ForgetLog:
    """Bound: ``_MAX_TOKENS`` token ids in all."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, ForgetKv]] = deque()
        self._num_tokens = 0

    def note(self, forget: ForgetKv, now_s: float) -> None:
        """An engine was asked. The oldest give way to it."""
        while self._entries and now_s - self._entries[0][0] > _LONG_AGO_S:
            self._drop_oldest()
        while self._entries and self._num_tokens + len(forget.token_ids) > _MAX_TOKENS:
            self._drop_oldest()
        self._add(forget, now_s)

    def try_add(self, forget: ForgetKv, now_s: float) -> bool:
        """There is no engine to ask. False if there is no room for it, as all must be kept."""
        if self._num_tokens + len(forget.token_ids) > _MAX_TOKENS:
            return False
        self._add(forget, now_s)
        return True

    def take(self) -> list[ForgetKv]:
        """All of them, oldest first; none is left."""
        taken = [forget for _, forget in self._entries]
        self._entries.clear()
        self._num_tokens = 0
        return taken

    def _add(self, forget: ForgetKv, now_s: float) -> None:
        self._entries.append((now_s, forget))
        self._num_tokens += len(forget.token_ids)

    def _drop_oldest(self) -> None:
        self._num_tokens -= len(self._entries.popleft()[1].token_ids)
