"""A driver with a server in it that does as a script says, and writes down when it did what.

Under a virtual clock what it wrote and what was measured must be the same, to the last bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.drivers.base import PastTurn
from loadtest.plan import PlannedRequest
from loadtest.timeline import Outcome, Timeline, Usage
from tests.support.virtual_time import VirtualClock


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are seconds from when the server took the request up. ``pieces``: of each choice."""

    pieces: Sequence[Sequence[float]]
    ends: float
    fails: str = ""  # with this reason, at its end
    tokens: int | None = None  # None: one a piece
    piece_tokens: list[list[int]] | None = None  # where the server tells
    prompt_tokens: int | None = None  # None: what was expected


@dataclass(frozen=True, slots=True)
class Call:
    planned: PlannedRequest


@dataclass(slots=True)
class Written:
    """What the server did for one request."""

    asked_at: float
    pieces: list[list[float]] = field(default_factory=list)
    ended_at: float = 0.0
    history: list[PastTurn] = field(default_factory=list)


Script = Callable[[PlannedRequest], Answer]


def steady(ends: float, num_pieces: int = 1) -> Script:
    """Pieces at equal distances, the last one at the end."""
    times = [ends * number / num_pieces for number in range(1, num_pieces + 1)]
    return lambda planned: Answer([times] * planned.n, ends)


class ScriptedDriver:
    """Serves ``places`` requests at a time.

    To prepare one, to send it, to read a piece of it and its end keep the tool's processor for so long.
    """

    def __init__(
        self,
        clock: VirtualClock,
        script: Script,
        *,
        places: int = 1000,
        prepare_s: float = 0.0,
        send_s: float = 0.0,
        piece_s: float = 0.0,
        end_s: float = 0.0,
    ) -> None:
        self.written: dict[int, Written] = {}
        self._clock = clock
        self._script = script
        self._places = asyncio.Semaphore(places)
        self._prepare_s, self._send_s, self._piece_s, self._end_s = prepare_s, send_s, piece_s, end_s

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def prepare(self, planned: PlannedRequest) -> Call:
        self._clock.spend(self._prepare_s)
        return Call(planned)

    async def perform(self, call: Call, past: Sequence[PastTurn], timeline: Timeline) -> PastTurn | None:
        planned = call.planned
        assert timeline.planned is planned
        self._clock.spend(self._send_s)
        timeline.sent_at = self._clock.now()
        written = self.written[planned.index] = Written(timeline.sent_at, history=list(past))
        async with self._places:
            return await self._serve(planned, timeline, written)

    async def _serve(self, planned: PlannedRequest, timeline: Timeline, written: Written) -> PastTurn | None:
        answer, began_at = self._script(planned), self._clock.now()
        written.pieces = [[] for _ in answer.pieces]
        timeline.piece_times = [[] for _ in answer.pieces]
        due = sorted((at, choice) for choice, times in enumerate(answer.pieces) for at in times)
        for at, choice in due:
            await self._clock.sleep_until(began_at + at)
            written.pieces[choice].append(began_at + at)
            timeline.piece_times[choice].append(self._clock.now())
            self._clock.spend(self._piece_s)
            if len(timeline.piece_times[0]) >= planned.reading.leave_after:
                return self._end(timeline, written, Outcome.LEFT)
        await self._clock.sleep_until(began_at + answer.ends)
        if answer.fails:
            timeline.reason = answer.fails
            return self._end(timeline, written, Outcome.FAILED)
        prompt_tokens = (
            timeline.expected_prompt_tokens if answer.prompt_tokens is None else answer.prompt_tokens
        )
        timeline.piece_tokens = answer.piece_tokens
        timeline.usage = Usage(prompt_tokens, len(due) if answer.tokens is None else answer.tokens)
        self._end(timeline, written, Outcome.COMPLETED)
        written.ended_at = began_at + answer.ends
        return PastTurn(planned.text, f"answer {planned.index}")

    def _end(self, timeline: Timeline, written: Written, outcome: Outcome) -> None:
        timeline.ended_at = written.ended_at = self._clock.now()
        timeline.outcome = outcome
        self._clock.spend(self._end_s)
