"""Measures two servers in turn, as ``loadtest.comparison`` orders them. Runs on: the event loop."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from loadtest.comparison import comparison_report, order
from loadtest.drivers.base import ServerUnreachableError
from loadtest.measuring.bench import AskedLoad, Bench, NothingMeasuredError, Take
from loadtest.results import CompareReport
from loadtest.spec import WorkloadSpec


async def measure_in_turn(
    benches: Mapping[str, Bench], spec: WorkloadSpec, load: AskedLoad, num_rounds: int
) -> CompareReport:
    """``benches`` are A and B, which are asked the same: what fits both.

    What there is when a stop comes, or one of them is gone, is compared.

    Raises WorkloadError, and if one was never measured ServerUnreachableError or NothingMeasuredError.
    """
    cut_short = ""
    fitting = benches["A"].fitting.shared_with(benches["B"].fitting)
    for bench in benches.values():
        bench.fitting = fitting
    takes: dict[str, list[Take]] = {name: [] for name in benches}
    for index, name in enumerate(order(num_rounds)):
        turn = index // 2
        title = f"round {turn + 1} of {num_rounds} · {name}"
        try:
            take = await benches[name].take(spec, load, title, turn)
        except ServerUnreachableError as error:
            if not all(takes.values()):
                raise
            cut_short = f"Of {2 * num_rounds} runs only {index} could be made. {error}"
            break
        if take is None:
            break
        takes[name].append(take)
    if not all(takes.values()):
        raise NothingMeasuredError("Interrupted before both had been measured.")
    a, b = (benches[name].report(spec, load, takes[name]) for name in "AB")
    return structs.replace(comparison_report(a, b), cut_short=cut_short)
