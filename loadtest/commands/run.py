"""``tideload run``: one load, as often as there are repeats."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from loadtest.commands.options import (
    load_options,
    measuring_options,
    output_options,
    repeats_option,
    target_options,
    workload_options,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from loadtest.commands.running import Work
    from loadtest.drivers.target import Target
    from loadtest.measuring.progress import Display
    from loadtest.results import RunReport


@click.command("run")
@target_options
@load_options
@workload_options
@repeats_option(default=3)
@measuring_options
@output_options
def run_command(**options: Any) -> None:
    """Measure a server under one load.

    With --rate requests come when they come, whatever the server does; with --concurrency so many users each
    wait for their answer. Latency counts from the time a request was intended, beside that from its sending.

    Exit codes: 0; 1 nothing answered; 2 wrong use; 3 the figures are not to be trusted (the load was not what
    was asked, or the server counted other tokens); 130 Ctrl-C, what was measured is kept.
    """
    from loadtest.commands.running import measure_and_leave
    from loadtest.commands.settings import take_output, take_target

    output, target = take_output(options), take_target(options)
    measure_and_leave(run_of(options, target)(target), output)


def run_of(options: dict[str, Any], target: Target) -> Callable[[Target], Work]:
    """What these options ask of a server like that, whose address may be yet to come."""
    from loadtest.commands.settings import (
        check_together,
        check_workload,
        counted,
        take_load,
        take_measuring,
        take_workload,
    )
    from loadtest.measuring.bench import Bench

    spec, repeats = take_workload(options), options.pop("repeats")
    load, measuring = take_load(options, spec), take_measuring(options)
    spec = counted(spec, load)
    check_together(target, spec)
    check_workload(spec, load)

    def of(target: Target) -> Work:
        async def work(display: Display, stop: asyncio.Event) -> RunReport:
            bench = await Bench.of(target, measuring, display, stop, sys.argv[1:])
            return await bench.measure(spec, load, repeats)

        return work

    return of
