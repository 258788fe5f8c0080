"""Sends a plan's requests when they are intended, and has what happens written down.

All is encoded before the clock starts, and no garbage is collected while it runs. Each request has its
intended time, whatever keeps it from being sent then: of a first turn its ``at_s``; of a later one the end of
the turn before it and a pause, or its ``at_s`` if that is later; under a closed load the moment its user is
free, and a pause. Turns that nobody could ask because the conversation broke off are recorded like all
others: what fails early must not make a run look small. Runs on: the event loop. Blocks: only while it
encodes.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from loadtest.clock import Clock
from loadtest.drivers.base import Driver, PastTurn, PreparedCall
from loadtest.measured import Measured, Progress
from loadtest.measuring.cap import Cap
from loadtest.measuring.lag import LagMeter, ProcessorMeter
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from loadtest.timeline import Outcome, Timeline

_COUNT_EVERY_S = 0.25
BROKEN_OFF = "not asked, a turn before it failed"
Watch = Callable[[], Coroutine[Any, Any, None]]
"""What goes on beside a run until it is cancelled, such as a scraper's ``watch``. It does not fail."""

_Work = Callable[[], Coroutine[Any, Any, Any]]


class Runner:
    """Runs plans, one at a time, with a driver that is open. Setting ``stop`` ends a run early."""

    def __init__(self, driver: Driver, clock: Clock, progress: Progress, stop: asyncio.Event) -> None:
        self._driver = driver
        self._clock = clock
        self._progress = progress
        self._stop = stop

    async def run(self, plan: Plan, beside: Sequence[Watch] = ()) -> Measured:
        """Starts the clock, and ``beside`` with it. What was still running at a stop is UNFINISHED."""
        sender = _Sender(plan, self._driver, self._clock, self._progress)
        with _no_garbage_collected():
            self._clock.start()
            lag, processor = LagMeter(self._clock), ProcessorMeter(self._clock)
            async with _going_on(lag.watch, self._count_pieces, *beside):
                interrupted = await self._until_stopped(sender.send_all())
                timelines, share = sender.finish(), processor.share()  # before what goes on takes time to end
        self._progress.count_pieces()
        return Measured(
            timelines,
            lag.samples_s,
            sender.peak_concurrency,
            interrupted,
            share,
            sender.had_work_until_s,
        )

    async def _count_pieces(self) -> None:
        """Now and then: there are too many pieces to count each as it comes."""
        while True:
            await self._clock.sleep_until(self._clock.now() + _COUNT_EVERY_S)
            self._progress.count_pieces()

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it had to be stopped. Whatever is left of it is over then."""
        working = asyncio.create_task(work)
        async with _going_on(self._stop.wait) as (stopping,):
            try:
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                return not working.done()
            finally:
                await _cancel([working])


class _Sender:
    """The conversations of one run."""

    def __init__(self, plan: Plan, driver: Driver, clock: Clock, progress: Progress) -> None:
        self.peak_concurrency = 0
        self.had_work_until_s: float | None = None
        self._plan = plan
        self._driver = driver
        self._clock = clock
        self._progress = progress
        self._cap = Cap(plan.max_concurrency, clock)
        self._timelines: list[Timeline] = []
        requests = plan.requests
        self._calls: dict[int, PreparedCall] = {one.index: driver.prepare(one) for one in requests}
        progress.begin(len(requests))

    async def send_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._plan.load is Load.OPEN:
                await self._keep_schedule(group)
            else:
                assert self._plan.max_concurrency is not None
                conversations = iter(self._plan.conversations)
                for _ in range(self._plan.max_concurrency):
                    group.create_task(self._be_user(conversations))

    def finish(self) -> list[Timeline]:
        """All that was recorded, by its place in the plan."""
        now = self._clock.now()
        for timeline in self._timelines:
            if timeline.outcome is Outcome.UNFINISHED and timeline.sent_at is not None:
                timeline.ended_at = now
        return sorted(self._timelines, key=lambda timeline: timeline.planned.index)

    async def _keep_schedule(self, group: asyncio.TaskGroup) -> None:
        for conversation in self._plan.conversations:
            at_s = conversation.turns[0].at_s
            assert at_s is not None, "an open load has a schedule"
            await self._clock.sleep_until(at_s)
            group.create_task(self._converse(conversation, 0.0))

    async def _be_user(self, conversations: Iterator[Conversation]) -> None:
        """Take the next conversation when one is over, as long as there are any and it is not time to stop.

        A user is free when the tool comes to it: nobody can send a thousand requests in the same moment.
        """
        free_at = self._clock.now()
        for conversation in conversations:
            free_at = await self._converse(conversation, free_at)
            if free_at >= self._plan.stop_s:
                break
        if self.had_work_until_s is None:  # nobody before had to look for more
            self.had_work_until_s = min(free_at, self._plan.stop_s)

    async def _converse(self, conversation: Conversation, free_at: float) -> float:
        """Ask turn after turn; when the last one ended, which is when whoever asked is free again."""
        past: list[PastTurn] = []
        history_tokens = 0
        for turn, planned in enumerate(conversation.turns):
            intended_at = max(planned.at_s or 0.0, free_at + planned.think_s)
            if intended_at >= self._plan.stop_s:
                return intended_at
            await self._clock.sleep_until(intended_at)
            expected = history_tokens + planned.input_len
            timeline = self._record(Timeline(planned, turn, expected, intended_at))
            answer = await self._ask(timeline, past)
            free_at = self._clock.now() if timeline.ended_at is None else timeline.ended_at
            if answer is None:
                self._record_broken_off(conversation.turns[turn + 1 :], timeline, free_at)
                break
            past.append(answer)
            history_tokens = expected + _answered_tokens(timeline)
        return free_at

    async def _ask(self, timeline: Timeline, past: Sequence[PastTurn]) -> PastTurn | None:
        timeline.capped_s = await self._cap.enter()
        self._progress.on_sent(timeline)
        self.peak_concurrency = max(self.peak_concurrency, self._progress.running)
        try:
            return await self._driver.perform(self._calls.pop(timeline.planned.index), past, timeline)
        finally:
            self._progress.on_ended(timeline)
            self._cap.leave()

    def _record(self, timeline: Timeline) -> Timeline:
        self._timelines.append(timeline)
        return timeline

    def _record_broken_off(self, turns: Iterable[PlannedRequest], breaking: Timeline, free_at: float) -> None:
        """Turns that share the fate of the one before them: given up by the client, or failed."""
        is_left = breaking.outcome is Outcome.LEFT
        for turn, planned in enumerate(turns, breaking.turn + 1):
            timeline = self._record(Timeline(planned, turn, planned.input_len, free_at))
            timeline.outcome = Outcome.LEFT if is_left else Outcome.FAILED
            timeline.reason = "" if is_left else BROKEN_OFF
            self._progress.on_broken_off(timeline)


def _answered_tokens(timeline: Timeline) -> int:
    """Tokens of the choice that the next turn has in its history."""
    if timeline.usage is None:
        return timeline.planned.output_len
    return round(timeline.usage.completion_tokens / timeline.planned.n)


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """A collection over a plan's objects takes longer than a token does."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@asynccontextmanager
async def _going_on(*watches: _Work) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks that are over when the scope is."""
    tasks = [asyncio.create_task(watch()) for watch in watches]
    try:
        yield tasks
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Raises what one of them failed with: that is an error of ours."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
