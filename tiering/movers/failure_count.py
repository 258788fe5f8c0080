"""How often a mover failed, and which of its failures are worth a line in the log."""

from __future__ import annotations


class FailureCount:
    """Counts failures, and has few of them told: a broken link or disk shall not fill the log."""

    def __init__(self) -> None:
        self.total = 0

    def add(self) -> bool:
        """Count one more. Whether to tell of it: the first, second, fourth, eighth ... are told."""
        self.total += 1
        return self.total & (self.total - 1) == 0
