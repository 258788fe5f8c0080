"""One server under measurement: it is looked at once, then asked as often as there are repeats.

Each repeat has words of its own, so that no prefix cache knows them; a warm-up that is in no figure; and a
run, with the server's own metrics beside it. Runs on: the event loop.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, TypeVar

from msgspec import structs

from loadtest.clock import Clock, MonotonicClock
from loadtest.describe import load_label, run_notes, without_secret_fields, without_secrets
from loadtest.drafts import Room
from loadtest.drivers.base import Driver, ServerUnreachableError
from loadtest.drivers.survey import Survey, make_driver, survey
from loadtest.drivers.target import Target
from loadtest.measured import Measured, Progress
from loadtest.measuring.progress import Display
from loadtest.measuring.runner import Runner, Watch
from loadtest.measuring.scrape import Scraper, metrics_url
from loadtest.plan import Load, Plan
from loadtest.results import FORMAT, Repeat, RunReport, Series, Summary, Tool
from loadtest.schedule import schedule, schedule_of_repeats
from loadtest.slo import Slo
from loadtest.spec import Arrival, WorkloadSpec, of_repeat
from loadtest.summary import rows, summarize, usage_check
from loadtest.timeline import Outcome
from loadtest.workload import make_plan, warmup_plan

_QUICKEST_S = 0.1  # that an answer is taken to need, where no warm-up tells
_SUPPLY = 2.0  # requests made ready for each that a user could have answered
_MOST_SUPPLY = 50_000
_TOO_SOON = "Interrupted before anything was measured."
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Measuring:
    """How it is measured, whatever is asked."""

    slo: Slo | None
    num_warmup: int
    keep_cache: bool


@dataclass(frozen=True, slots=True)
class AskedLoad:
    """Conversations a second, or users; with neither the trace's own times."""

    rate: float | None = None
    users: int | None = None

    def of(self, spec: WorkloadSpec) -> WorkloadSpec:
        if self.users is None:
            return spec
        return replace(spec, arrival=Arrival.CLOSED, max_concurrency=self.users)


@dataclass(frozen=True, slots=True)
class Take:
    """One repeat, as it was measured. ``num_warmed``: requests that completed before it."""

    salt: str
    seed: int
    started_at: str
    plan: Plan
    measured: Measured
    series: list[Series]
    metrics_problem: str  # empty if the server's metrics were read
    num_warmed: int


class NothingMeasuredError(Exception):
    """The stop came first. The message is a sentence for the user."""


class Bench:
    """A server that was looked at. ``stop`` ends what runs; what was measured until then is kept.

    ``fitting``: what decides which requests fit; of servers that are compared it must be the same.
    """

    def __init__(
        self,
        seen: Survey,
        measuring: Measuring,
        display: Display,
        stop: asyncio.Event,
        arguments: Sequence[str],
    ) -> None:
        self.seen = seen
        self._room = Room(seen.cost, seen.server.max_model_len)
        self.fitting = self._room
        self._measuring = measuring
        self._display = display
        self._stop = stop
        self._arguments = arguments

    @classmethod
    async def of(
        cls,
        target: Target,
        measuring: Measuring,
        display: Display,
        stop: asyncio.Event,
        arguments: Sequence[str],
    ) -> Bench:
        """Look at the server. Raises ServerUnreachableError and NothingMeasuredError."""
        with display.doing(f"looking at {target.base_url}"):
            seen = await _unless(stop, survey(target))
        return cls(seen, measuring, display, stop, arguments)

    async def measure(
        self, spec: WorkloadSpec, load: AskedLoad, num_repeats: int, title: str = ""
    ) -> RunReport:
        """All repeats that begin before the stop, or before the server is gone.

        Raises WorkloadError, OpenFilesError, and if there are none ServerUnreachableError or
        NothingMeasuredError.
        """
        takes, cut_short = list[Take](), ""
        for repeat in range(num_repeats):
            which = f"repeat {repeat + 1} of {num_repeats}" if num_repeats > 1 else ""
            try:
                take = await self.take(spec, load, " · ".join(filter(None, (title, which))), repeat)
            except ServerUnreachableError as error:
                if not takes:
                    raise
                cut_short = f"Of {num_repeats} repeats only {len(takes)} could be made. {error}"
                break
            if take is None:
                break
            takes.append(take)
        if not takes:
            raise NothingMeasuredError(_TOO_SOON)
        return structs.replace(self.report(spec, load, takes), cut_short=cut_short)

    async def take(self, spec: WorkloadSpec, load: AskedLoad, title: str, repeat: int) -> Take | None:
        """One repeat, with a seed by its number, from 0; None if the stop came before it began.

        Prompts that a cache is to know stay the same, lengths too. Raises WorkloadError, OpenFilesError and
        ServerUnreachableError.
        """
        keep_cache = self._measuring.keep_cache
        salt = f"kept {spec.seed}" if keep_cache else secrets.token_hex(8)
        spec = spec if keep_cache else of_repeat(spec, repeat)
        asked = load.of(spec)
        is_timed = load.users is not None and asked.duration_s is not None
        is_timed = is_timed and not (asked.num_requests or asked.sessions)
        plan = self._plan(replace(asked, num_requests=load.users) if is_timed else asked, load.rate, salt)
        warmup = self._warmup(asked, salt)
        clock = MonotonicClock()
        driver = make_driver(self.seen, clock, max(map(_most_at_a_time, (plan, *warmup))))
        await driver.open()
        try:
            name = f"{title} · warm-up".removeprefix(" · ")
            warmed = [await self._run(warming, driver, clock, name) for warming in warmup]
            if self._stop.is_set():
                return None
            if is_timed:
                plan = self._plan(replace(asked, num_requests=supply(asked, warmed)), load.rate, salt)
            started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            target = self.seen.target
            scraper = Scraper(metrics_url(target.address), target.headers, clock, self.seen.server.kind)
            measured = await self._run(plan, driver, clock, title or "run", scraper.watch)
        finally:
            await driver.close()
        num_warmed = sum(map(_num_completed, warmed))
        return Take(
            salt, spec.seed, started_at, plan, measured, scraper.series(), scraper.problem, num_warmed
        )

    def report(self, spec: WorkloadSpec, load: AskedLoad, takes: Sequence[Take]) -> RunReport:
        """All that these repeats found."""
        slo, server, target = self._measuring.slo, self.seen.server, self.seen.target
        measured, plans = [take.measured for take in takes], [take.plan for take in takes]
        summaries = [summarize([run], slo) for run in measured]
        report = RunReport(
            format=FORMAT,
            tool=this_tool(self._arguments),
            server=server,
            workload=self._workload(spec, load),
            label=load_label(load.of(spec), load.rate, target.api, target.transport),
            slo=slo.as_ms() if slo is not None else {},
            warmup_requests=min(take.num_warmed for take in takes),
            interrupted=any(run.interrupted for run in measured),
            usage=usage_check(measured, server.forces_lengths),
            summary=summaries[0] if len(summaries) == 1 else summarize(measured, slo),
            schedule=schedule_of_repeats(plans, measured),
            repeats=[_repeat(take, summary) for take, summary in zip(takes, summaries, strict=True)],
            notes=[],
        )
        is_salted = not self._measuring.keep_cache
        doubts = run_notes(
            report,
            salted=is_salted,
            dropped=max(plan.dropped for plan in plans),
            ran_out=any(_ran_out(take) for take in takes),
        )
        problems = dict.fromkeys(take.metrics_problem for take in takes if take.metrics_problem)
        return structs.replace(report, notes=[*self.seen.notes, *doubts, *problems])

    def _plan(self, spec: WorkloadSpec, rate: float | None, salt: str) -> Plan:
        return make_plan(
            spec,
            rate=rate,
            salt=salt,
            words=self.seen.words,
            room=self._room,
            fitting=self.fitting,
        )

    def _warmup(self, spec: WorkloadSpec, salt: str) -> list[Plan]:
        """What comes before it, if anything does."""
        if not self._measuring.num_warmup:
            return []
        warmup = warmup_plan(
            spec,
            num_requests=self._measuring.num_warmup,
            salt=salt,
            words=self.seen.words,
            room=self._room,
        )
        return [warmup]

    async def _run(self, plan: Plan, driver: Driver, clock: Clock, title: str, *beside: Watch) -> Measured:
        progress = Progress()
        with self._display.showing(title, progress):
            return await Runner(driver, clock, progress, self._stop).run(plan, beside)

    def _workload(self, spec: WorkloadSpec, load: AskedLoad) -> dict[str, str | int | float | bool | None]:
        target = self.seen.target
        return {
            **load.of(spec).as_json(),
            "arrival": load.of(spec).arrival_at(load.rate).value,
            "rate": load.rate,
            "endpoint": target.api,
            "transport": target.transport,
            "extra_body": without_secret_fields(json.dumps(dict(target.extra))),
            "timeout_s": target.timeout_s,
            "warmup": self._measuring.num_warmup,
            "keep_cache": self._measuring.keep_cache,
        }


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, Found]) -> Found:
    """What comes of it. If the stop comes first it is given up, and NothingMeasuredError raised."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise NothingMeasuredError(_TOO_SOON)
        return working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait((working, stopping))


def supply(spec: WorkloadSpec, warmed: Sequence[Measured]) -> int:
    """How many requests the users of a closed load could ask in its time, by the quickest of the warm-up.

    All are made ready before the clock starts, so that there have to be enough.
    """
    assert spec.max_concurrency is not None and spec.duration_s is not None
    took_s = [
        timeline.ended_at - timeline.intended_at
        for run in warmed
        for timeline in run.timelines
        if timeline.outcome is Outcome.COMPLETED and timeline.ended_at is not None
    ]
    each = math.ceil(_SUPPLY * spec.duration_s / min(took_s, default=_QUICKEST_S)) + 1
    return min(spec.max_concurrency * each, max(_MOST_SUPPLY, spec.max_concurrency))


def _ran_out(take: Take) -> bool:
    """Whether the users had asked all that was made ready before their time was over."""
    if take.measured.interrupted or math.isinf(take.plan.stop_s):
        return False
    ended = [timeline.ended_at for timeline in take.measured.timelines if timeline.ended_at is not None]
    return max(ended, default=0.0) < take.plan.stop_s


def _repeat(take: Take, summary: Summary) -> Repeat:
    return Repeat(
        salt=take.salt,
        started_at=take.started_at,
        summary=summary,
        schedule=schedule(take.plan, take.measured),
        requests=rows(take.measured),
        server=take.series,
        seed=take.seed,
        time_scale=take.plan.time_scale,
    )


def this_tool(arguments: Sequence[str]) -> Tool:
    return Tool(
        version=metadata.version("tidegate"),
        python=platform.python_version(),
        platform=platform.platform(),
        processors=len(os.sched_getaffinity(0)),
        arguments=without_secrets(arguments),
    )


def _num_completed(run: Measured) -> int:
    return sum(timeline.outcome is Outcome.COMPLETED for timeline in run.timelines)


def _most_at_a_time(plan: Plan) -> int:
    if plan.load is Load.CLOSED and plan.max_concurrency is not None:
        return plan.max_concurrency
    return min(len(plan.conversations), plan.max_concurrency or len(plan.conversations))
