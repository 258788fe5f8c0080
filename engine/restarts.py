"""When an engine that died is started again, when no more, and whether what started is the same one.

Pure: time (seconds, any origin) is passed in. An engine that dies again and again, or can start no more,
costs a few starts, ever further apart. Then it is given up, for whoever watches over the server to see.
"""

from __future__ import annotations

from collections import deque

import msgspec

from engine.messages import EngineInfo

WINDOW_S = 600.0
_MAX_DELAY_S = 60.0
_LEAST_WAIT_S = 1.0  # to tell a client; a start may take longer than the last one did
_MAY_DIFFER = {
    "num_blocks", "kv_bytes", "host_blocks", "host_kv_bytes", "host_link", "disk_blocks", "disk_kv_bytes",
    "disk_blocks_found", "memory_total_bytes", "memory_available_bytes", "threads", "notes",
}  # fmt: skip


class RestartPlan:
    """``max_restarts`` deaths within ``window_s`` are each followed by another start, one more is not.

    The first start comes at once, the next after ``delay_s``, each later one after twice as long. A start
    that fails is a death. Bound: ``max_restarts`` times are remembered.
    """

    def __init__(self, max_restarts: int, *, window_s: float = WINDOW_S, delay_s: float = 1.0) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._delay_s = delay_s
        self._deaths: deque[float] = deque(maxlen=max_restarts)
        self._start_at: float | None = None  # of an engine that is not ready
        self._start_s = 0.0  # what the last start took that succeeded

    @property
    def limit(self) -> str:
        """What was reached when there is no next start, to be told behind a reason."""
        if not self._max_restarts:
            return ""
        return f" (death {self._max_restarts + 1} within {self._window_s:g} s)"

    def note_start(self, now_s: float) -> None:
        self._start_at = now_s

    def note_ready(self, now_s: float) -> None:
        assert self._start_at is not None
        self._start_s, self._start_at = now_s - self._start_at, None

    def note_death(self, now_s: float) -> float | None:
        """Returns the seconds to wait before the next start; None: there is none."""
        delay_s = self._next_delay_s(now_s)
        if delay_s is not None:
            self._deaths.append(now_s)
            self._start_at = now_s + delay_s
        return delay_s

    def ready_in_s(self, now_s: float) -> float | None:
        """Of a dead engine: until another is ready, if that starts as fast as the last; None: never."""
        start_at = self._start_at
        if start_at is None:  # its death is not noted yet
            delay_s = self._next_delay_s(now_s)
            if delay_s is None:
                return None
            start_at = now_s + delay_s
        return max(start_at + self._start_s - now_s, _LEAST_WAIT_S)

    def _next_delay_s(self, now_s: float) -> float | None:
        before = sum(now_s - death < self._window_s for death in self._deaths)
        if before >= self._max_restarts:
            return None
        return min(self._delay_s * 2.0 ** (before - 1), _MAX_DELAY_S) if before else 0.0


def differences(before: EngineInfo, after: EngineInfo) -> tuple[str, ...]:
    """What of an engine is not as it was, of all that the gateway counts on: its model, window, tokens.

    How much memory it found may differ.
    """
    names = [field.name for field in msgspec.structs.fields(EngineInfo) if field.name not in _MAY_DIFFER]
    return tuple(name for name in names if getattr(before, name) != getattr(after, name))
