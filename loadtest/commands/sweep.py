"""``tideload sweep``: latency against throughput, the knee, and the highest load that keeps an SLO."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from loadtest.commands.options import (
    MORE_THAN_0,
    SHARE,
    measuring_options,
    output_options,
    repeats_option,
    target_options,
    workload_options,
)
from loadtest.sweep import MOST_POINTS

if TYPE_CHECKING:
    import asyncio

    from loadtest.measuring.progress import Display
    from loadtest.results import SweepReport
    from loadtest.sweep_report import Over


@click.command("sweep")
@target_options
@click.option(
    "--over",
    type=click.Choice(["rate", "concurrency"]),
    help="What is varied.  [default: what is given; else the rate]",
)
@click.option(
    "--rate",
    "rates",
    type=MORE_THAN_0,
    multiple=True,
    metavar="RATE",
    help="Measure this rate in any case; may be given more than once."
    "  [default: from half of what one user gets]",
)
@click.option(
    "--concurrency",
    "users",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Measure so many users in any case; may be given more than once.  [default: from 1]",
)
@workload_options
@repeats_option(default=1)
@measuring_options
@click.option(
    "--attainment",
    type=SHARE,
    default=0.9,
    show_default=True,
    metavar="SHARE",
    help="Of the requests that must keep the SLO, for the load to be within it.",
)
@click.option(
    "--points",
    "most_points",
    type=click.IntRange(min=1),
    default=MOST_POINTS,
    show_default=True,
    metavar="N",
    help="Loads to measure at most.",
)
@output_options
def sweep_command(**options: Any) -> None:
    """Measure a server under one load after the other.

    The load doubles until more brings no more, and until the SLO is missed; then the highest load that keeps
    it is found by bisection. A load meets the SLO if 95 % intervals of its share leave no doubt, and if the
    server bears it: its queue does not grow as long as requests come. --num-requests and --duration are the
    least of each rate; else that is 50 requests and 30 s. Users send for --duration, or four requests each
    and 50 in all. Exit codes are those of run; a load that the server cannot bear is a finding, and no fault.
    """
    from loadtest.commands.running import measure_and_leave
    from loadtest.commands.settings import (
        check_together,
        check_workload,
        take_measuring,
        take_output,
        take_target,
        take_workload,
    )
    from loadtest.measuring.bench import Bench
    from loadtest.measuring.sweeping import Sweeping, load_at, measure_sweep

    output, target, measuring = take_output(options), take_target(options), take_measuring(options)
    over = _over(options.pop("over"), options["rates"], options["users"])
    spec = take_workload(options)
    check_together(target, spec)
    if over == "concurrency" and spec.max_concurrency is not None:
        raise click.UsageError("--concurrency is the number of users: it takes no --max-concurrency.")
    sweeping = Sweeping(
        spec=spec,
        over=over,
        first=tuple(map(float, options.pop("rates") or options.pop("users"))),
        repeats=options.pop("repeats"),
        attainment=options.pop("attainment"),
        has_slo=measuring.slo is not None,
        most_points=options.pop("most_points"),
    )

    check_workload(*load_at(sweeping, min(sweeping.first, default=1.0)))

    async def work(display: Display, stop: asyncio.Event) -> SweepReport:
        bench = await Bench.of(target, measuring, display, stop, sys.argv[1:])
        return await measure_sweep(sweeping, bench, stop)

    measure_and_leave(work, output)


def _over(given: Over | None, rates: tuple[float, ...], users: tuple[int, ...]) -> Over:
    if rates and users:
        raise click.UsageError("--rate and --concurrency exclude each other: one of them is varied.")
    found: Over = "concurrency" if users else "rate"
    if given is not None and (rates or users) and given != found:
        raise click.UsageError(f"--over {given} contradicts --{found}.")
    return given or found
