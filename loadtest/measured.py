"""What a run has so far, for who watches it, and what it had in the end. Records only."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.timeline import Outcome, Timeline

GRID_S = 0.005
"""Between two looks at how late the tool's own event loop is."""


@dataclass(slots=True)
class Progress:
    """Counts of the run that goes on, of requests where nothing else is said. A display polls them.

    Plain numbers that the event loop alone writes, so that a display may read them from a thread of its own.
    """

    planned: int = 0
    sent: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    left: int = 0
    pieces: int = 0  # of text, that came for any request; as of the last ``count_pieces``
    _ended_pieces: int = 0
    _live: dict[int, Timeline] = field(default_factory=dict)

    def begin(self, planned: int) -> None:
        """Another run: all counts are 0 again."""
        self.planned = planned
        self.sent = self.running = self.completed = self.failed = self.left = 0
        self.pieces = self._ended_pieces = 0
        self._live.clear()

    def on_sent(self, timeline: Timeline) -> None:
        """Or about to be: what is left to do is its driver's."""
        self.sent += 1
        self.running += 1
        self._live[timeline.planned.index] = timeline

    def on_ended(self, timeline: Timeline) -> None:
        self.running -= 1
        del self._live[timeline.planned.index]
        self._ended_pieces += _pieces(timeline)
        self.completed += timeline.outcome is Outcome.COMPLETED
        self.failed += timeline.outcome is Outcome.FAILED
        self.left += timeline.outcome is Outcome.LEFT

    def count_pieces(self) -> None:
        self.pieces = self._ended_pieces + sum(map(_pieces, self._live.values()))

    def on_broken_off(self, timeline: Timeline) -> None:
        """One that nobody could ask."""
        self.failed += timeline.outcome is Outcome.FAILED
        self.left += timeline.outcome is Outcome.LEFT


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. ``timelines``, by their place in the plan, are of all requests whose time had come."""

    timelines: list[Timeline]
    loop_lag_s: list[float]  # at each point of the grid, from the first on
    peak_concurrency: int
    interrupted: bool
    processor_share: float = 0.0  # of one processor, that the tool's process used
    had_work_until_s: float | None = None  # all users of a closed load; else None, also if it was stopped


def _pieces(timeline: Timeline) -> int:
    return sum(map(len, timeline.piece_times))
