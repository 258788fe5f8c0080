"""``tideload compare``: two servers in turn, and whether they differ."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from loadtest.commands.options import (
    ENDPOINTS,
    TRANSPORTS,
    load_options,
    measuring_options,
    output_options,
    target_options_but_url,
    workload_options,
)

if TYPE_CHECKING:
    import asyncio

    from loadtest.drivers.target import Target
    from loadtest.measuring.progress import Display
    from loadtest.results import CompareReport


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@target_options_but_url
@click.option("--model-b", metavar="NAME", help="Model to ask B for.  [default: as A, if one is named]")
@click.option("--endpoint-b", type=click.Choice(ENDPOINTS), help="API to speak with B.  [default: as with A]")
@click.option("--transport-b", type=click.Choice(TRANSPORTS), help="Transport to B.  [default: as to A]")
@click.option(
    "--api-key-b", envvar="TIDELOAD_API_KEY_B", metavar="KEY", help="Key to send to B.  [default: as to A]"
)
@click.option(
    "--rounds",
    type=click.IntRange(min=2),
    default=6,
    show_default=True,
    metavar="N",
    help="Pairs of runs. With fewer than six no difference can be told with 95 %.",
)
@load_options
@workload_options
@measuring_options
@output_options
def compare_command(a: str, b: str, **options: Any) -> None:
    """Measure the servers at the URLs A and B in turn, and say whether they differ.

    Rounds go A B, B A, A B, ...; each is a pair, and what is compared are medians over pairs. A and B may be
    one server that is asked in two ways. Exit codes are those of run: a difference is no failure.
    """
    from loadtest.commands.running import measure_and_leave
    from loadtest.commands.settings import (
        check_together,
        check_workload,
        counted,
        take_load,
        take_measuring,
        take_output,
        take_workload,
    )
    from loadtest.measuring.bench import Bench
    from loadtest.measuring.comparing import measure_in_turn

    output, targets = take_output(options), _targets(a, b, options)
    spec, measuring = take_workload(options), take_measuring(options)
    load, rounds = take_load(options, spec), options.pop("rounds")
    spec = counted(spec, load)
    check_workload(spec, load)
    for target in targets:
        check_together(target, spec)

    async def work(display: Display, stop: asyncio.Event) -> CompareReport:
        benches = {
            name: await Bench.of(target, measuring, display, stop, sys.argv[1:])
            for name, target in zip("AB", targets, strict=True)
        }
        return await measure_in_turn(benches, spec, load, rounds)

    measure_and_leave(work, output)


def _targets(a: str, b: str, options: dict[str, Any]) -> tuple[Target, Target]:
    from loadtest.commands.settings import take_target

    of_b = dict(options)
    for name in ("model", "endpoint", "transport", "api_key"):
        given = options.pop(f"{name}_b")
        of_b[name] = options[name] if given is None else given
    return take_target(options, a), take_target(of_b, b)
