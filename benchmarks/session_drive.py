"""Drives one server through a plan of sessions, and notes what each turn got and from where.

Runs on the client's event loop. A server tells what was found on which tier in totals only, so they are read
before a turn and after its first word. Turns that overlap are read together, and each is taken to have found
its share of that on every tier.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.session_client import Client
from benchmarks.session_plan import PlannedTurn
from benchmarks.session_results import TIERS, Hits, Reply, Samples, StepAlone, TurnResult, busy_s, hits_name

_READ_AHEAD_S = 0.05  # before a turn is due, its totals are read


@dataclass(slots=True)
class _Beginning:
    """Turns of which ``num_waiting`` have had no word yet."""

    before: asyncio.Task[Samples]
    hits: Hits = field(default_factory=Hits)
    num_waiting: int = 0


class HitWatch:
    """Reads what turns find. Enter before a turn is sent, leave at its first word."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Samples]]) -> None:
        self._read = read
        self._beginning: _Beginning | None = None
        self._readings: list[asyncio.Task[None]] = []

    async def enter(self) -> Hits:
        """What it and those beside it find; filled in later."""
        if self._beginning is None:
            self._beginning = _Beginning(asyncio.create_task(self._read()))
        beginning = self._beginning
        beginning.num_waiting += 1
        beginning.hits.num_turns += 1
        await asyncio.shield(beginning.before)
        return beginning.hits

    def leave(self) -> None:
        assert self._beginning is not None
        self._beginning.num_waiting -= 1
        if not self._beginning.num_waiting:
            self._readings.append(asyncio.create_task(self._note(self._beginning)))
            self._beginning = None

    async def finish(self) -> None:
        """Wait until all is known."""
        await asyncio.gather(*self._readings)

    async def _note(self, beginning: _Beginning) -> None:
        after = await self._read()
        before = beginning.before.result()
        for tier in TIERS:
            name = hits_name(tier)
            beginning.hits.tokens[tier] = after.get(name, 0.0) - before.get(name, 0.0)


class Drive:
    """One server and its sessions. ``results`` are in the order in which turns ended.

    Answers of the sessions in ``sampled`` come with their tokens' log probabilities.
    """

    def __init__(self, client: Client, sampled: frozenset[int] = frozenset()) -> None:
        self.results: list[TurnResult] = []
        self._client = client
        self._sampled = sampled
        self._last: dict[int, Reply] = {}

    async def open(self, turns: Sequence[PlannedTurn], at_once: int = 2) -> None:
        """Begin the sessions. Raises RuntimeError if that fails: there is nothing to measure then."""
        waiting = iter(turns)

        async def work() -> None:
            for turn in waiting:
                result = await self.take_turn(turn)
                if result.reply.error:
                    raise RuntimeError(f"session {turn.session} could not begin: {result.reply.error}")

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())

    async def cost_of_turn(self, turns: Sequence[PlannedTurn]) -> float:
        """Engine seconds that one of these takes, one after the other. The sessions stay as they are."""
        before = busy_s(await self._client.samples())
        for turn in turns:
            await self._take_aside(turn)
        return (busy_s(await self._client.samples()) - before) / len(turns)

    async def steps_alone(self, turns: Sequence[PlannedTurn]) -> list[StepAlone]:
        """For each of these the one step that it takes when its history is on the device already."""
        found = []
        for turn in turns:
            await self._take_aside(replace(turn, message="Go on."), max_output_tokens=1)
            before = busy_s(await self._client.samples())
            reply = await self._take_aside(turn, max_output_tokens=1)
            after = busy_s(await self._client.samples())
            found.append(
                StepAlone(after - before, reply.cached_tokens, reply.input_tokens - reply.cached_tokens)
            )
        return found

    async def run(self, turns: Sequence[PlannedTurn], started: float) -> None:
        """Send each turn at its time after ``started``, or when the one before it has ended."""
        watch = HitWatch(self._client.samples)
        by_session: dict[int, list[PlannedTurn]] = {}
        for turn in turns:
            by_session.setdefault(turn.session, []).append(turn)

        async def live(own: list[PlannedTurn]) -> None:
            for turn in own:
                due = started + turn.at
                await _sleep_until(due - _READ_AHEAD_S)
                hits = await watch.enter()
                await _sleep_until(due)
                result = await self.take_turn(turn, watch.leave)
                result.late_s, result.hits = result.reply.sent_at - due, hits

        async with asyncio.TaskGroup() as group:
            for own in by_session.values():
                group.create_task(live(own))
        await watch.finish()

    async def take_turn(self, turn: PlannedTurn, on_first: Callable[[], None] = lambda: None) -> TurnResult:
        """One turn, behind the last one of its session that was answered."""
        previous = self._last.get(turn.session)
        reply = await self._client.respond(turn.session, self._body(turn, previous), on_first)
        if not reply.error:
            self._last[turn.session] = reply
        result = TurnResult(turn, reply, previous)
        self.results.append(result)
        return result

    async def _take_aside(self, turn: PlannedTurn, **more: object) -> Reply:
        """A turn that its session will not remember. Raises RuntimeError if it fails."""
        body = self._body(turn, self._last[turn.session])
        reply = await self._client.respond(turn.session, {**body, "store": False, **more})
        if reply.error:
            raise RuntimeError(f"a turn failed: {reply.error}")
        return reply

    def _body(self, turn: PlannedTurn, previous: Reply | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": "served", "input": turn.message, "max_output_tokens": turn.max_tokens, "temperature": 0,
        }  # fmt: skip
        if previous is not None:
            body["previous_response_id"] = previous.response_id
        if turn.session in self._sampled:
            body["include"] = ["message.output_text.logprobs"]
        return body


def some_returns(turns: Sequence[PlannedTurn], count: int, seed: int = 0) -> list[PlannedTurn]:
    """So many of a plan's later turns, of sessions chosen at random."""
    return random.Random(seed).sample(list(turns), min(count, len(turns)))


async def _sleep_until(when: float) -> None:
    await asyncio.sleep(max(0.0, when - time.monotonic()))
