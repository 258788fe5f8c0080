"""Runs of the load test in virtual time, in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.measured import Measured, Progress
from loadtest.measuring.runner import Runner
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from tests.support.scripted_driver import Script, ScriptedDriver, Written
from tests.support.virtual_time import VirtualClock, run_virtually


@dataclass(frozen=True, slots=True)
class VirtualRun:
    plan: Plan
    measured: Measured
    written: dict[int, Written]  # by request: what the server did, and when
    progress: Progress


def requests(times: Iterable[float | None], output_len: int = 1) -> list[PlannedRequest]:
    return [PlannedRequest(index, f"prompt {index}", 5, output_len, at_s) for index, at_s in enumerate(times)]


def open_plan(
    singles: Sequence[PlannedRequest], rate: float | None = None, max_concurrency: int | None = None
) -> Plan:
    return Plan(tuple(Conversation((one,)) for one in singles), Load.OPEN, rate, max_concurrency)


def closed_plan(singles: Sequence[PlannedRequest], users: int) -> Plan:
    return Plan(tuple(Conversation((one,)) for one in singles), Load.CLOSED, max_concurrency=users)


def run_plan(
    plan: Plan,
    script: Script,
    *,
    stop_at: float | None = None,
    places: int = 1000,
    prepare_s: float = 0.0,
    send_s: float = 0.0,
    piece_s: float = 0.0,
    end_s: float = 0.0,
) -> VirtualRun:
    """Against a scripted server that takes so many at a time, with a tool that is so slow."""

    async def main() -> VirtualRun:
        clock, progress, stop = VirtualClock(), Progress(), asyncio.Event()
        driver = ScriptedDriver(
            clock, script, places=places, prepare_s=prepare_s, send_s=send_s, piece_s=piece_s, end_s=end_s
        )
        if stop_at is not None:
            asyncio.get_running_loop().call_at(stop_at, stop.set)
        measured = await Runner(driver, clock, progress, stop).run(plan)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return VirtualRun(plan, measured, driver.written, progress)

    return run_virtually(main())
