"""Knows whether steps advance while work is pending. Pure: time (seconds, any origin) is passed in."""

from __future__ import annotations


class ProgressWatch:
    """Stalled means: work has been pending, and no step has ended, for longer than ``timeout_s``."""

    def __init__(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self._timeout_s = timeout_s
        self._last_step = -1
        self._waiting_since: float | None = None

    def note_pending(self, is_pending: bool, now: float) -> None:
        """Tell whether any request could be advanced; call when that may have changed."""
        if not is_pending:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now

    def note_step(self, step: int, now: float) -> None:
        """A report of step number ``step`` arrived."""
        if step > self._last_step:
            self._last_step = step
            if self._waiting_since is not None:
                self._waiting_since = now

    def is_stalled(self, now: float) -> bool:
        return self._waiting_since is not None and now - self._waiting_since > self._timeout_s
