"""Makes rows of what the rounds found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.bench_rows import Row, Section, compared
from benchmarks.cpu_engine.asked import GOALS, MOST_DRIFT, OURS, Asked, Load
from benchmarks.cpu_engine.floor import fastest_format, output_tokens_s, prefill_s
from benchmarks.cpu_engine.results import Round, Seen, Startups

FLOOR = "floor"
_Measure = Callable[[Seen], float | None]


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Of one load."""

    load: Load
    rounds: Sequence[Round]

    def row(self, row: Row, measure: _Measure) -> Row:
        """A row with what every round has of a measure: a server that is lost has none."""
        values = {
            name: [measure(found.seen[name]) if name in found.seen else None for found in self.rounds]
            for name in self.rounds[0].seen
        }
        whole = {name: [one for one in had if one is not None] for name, had in values.items()}
        whole = {name: had for name, had in whole.items() if len(had) == len(self.rounds)}
        if OURS not in whole:
            return msgspec.structs.replace(row, note="answers came in one piece")
        return _with_note(compared(row, whole.pop(OURS), whole), self.note)

    def beside_floor(
        self, row: Row, measure: Callable[[Seen], float], floor: Callable[[Round], float]
    ) -> Row:
        ours = [measure(found.seen[OURS]) for found in self.rounds]
        return compared(row, ours, {FLOOR: [floor(found) for found in self.rounds]})

    @property
    def note(self) -> str:
        """What makes one doubt these figures."""
        changed = sum(found.drift > MOST_DRIFT for found in self.rounds)
        return f"the machine changed in {changed} of {len(self.rounds)} rounds" if changed else ""


def sections(asked: Asked, rounds: Sequence[Round], started: Startups) -> Iterator[Section]:
    """One for each load, one for the long prompt, one for what is not of a load."""
    for load in asked.loads:
        yield Section(name=f"CPU engine, {load.name}", rows=list(_load_rows(_of(load, rounds))))
    yield Section(name=f"CPU engine, {asked.prompt.name}", rows=list(_prompt_rows(_of(asked.prompt, rounds))))
    yield Section(name="CPU engine, from its start", rows=list(_start_rows(started)))


def _of(load: Load, rounds: Sequence[Round]) -> _Rounds:
    return _Rounds(load, [found for found in rounds if found.load == load.name])


def _load_rows(had: _Rounds) -> Iterator[Row]:
    load = had.load
    yield had.row(Row(name="output tokens/s", goal=load.goal), lambda seen: seen.output_tok_s)
    floor = Row(name="the same beside the floor", goal=GOALS["floor"], note=_formats(had.rounds))
    yield had.beside_floor(
        floor, lambda seen: seen.output_tok_s, lambda found: output_tokens_s(found.constants, load)
    )
    ttft = Row(name="time to first token, median", unit="ms", is_ceiling=True)
    yield had.row(ttft, lambda seen: seen.ttft_ms)
    yield had.row(
        Row(name="gap between tokens, median", unit="ms", is_ceiling=True), lambda seen: seen.itl_ms
    )
    yield had.row(
        Row(name="gap between tokens, p99", unit="ms", is_ceiling=True), lambda seen: seen.itl_p99_ms
    )


def _prompt_rows(had: _Rounds) -> Iterator[Row]:
    ttft = Row(name="time to first token", unit="ms", goal=GOALS["ttft"], is_ceiling=True)
    yield had.row(ttft, lambda seen: seen.ttft_ms)
    floor = Row(name="the same beside the floor", unit="ms", goal=1 / GOALS["floor"], is_ceiling=True)
    yield had.beside_floor(
        floor,
        lambda seen: seen.ttft_ms,
        lambda found: 1000 * prefill_s(found.constants, had.load.input_len),
    )


def _start_rows(started: Startups) -> Iterator[Row]:
    seconds = dict(started.start_s)
    ours = seconds.pop(OURS)
    row = Row(
        name="start to first token", unit="s", goal=GOALS["start_s"], is_ceiling=True, judges_value=True
    )
    yield compared(row, ours, seconds)
    gigabytes = {name: [num_bytes / 1e9] for name, num_bytes in started.memory_bytes.items()}
    ours = gigabytes.pop(OURS)
    row = Row(
        name="memory beyond the KV pool", unit="GB", goal=GOALS["memory_gb"], is_ceiling=True,
        judges_value=True,
    )  # fmt: skip
    yield compared(row, ours, gigabytes)


def _formats(rounds: Sequence[Round]) -> str:
    """Of which weights the floor is made."""
    found = sorted({fastest_format(one.constants.products_s) for one in rounds})
    return f"floor: {' or '.join(found)} weights"


def _with_note(row: Row, note: str) -> Row:
    return msgspec.structs.replace(row, note="; ".join(filter(None, (row.note, note))))


def drift_facts(rounds: Sequence[Round]) -> dict[str, str]:
    """How much the machine changed while it was measured, over all rounds and within one."""
    flops = [probe.matmul_flop_s for found in rounds for probe in (found.before, found.after)]
    reads = [probe.read_bytes_s for found in rounds for probe in (found.before, found.after)]
    return {
        "probe: matmul": f"{min(flops) / 1e9:,.0f} to {max(flops) / 1e9:,.0f} GFLOP/s",
        "probe: memory read": f"{min(reads) / 1e9:.1f} to {max(reads) / 1e9:.1f} GB/s",
        "most drift within a round": f"{max(found.drift for found in rounds):.2f}",
        "rounds made again": f"{sum(found.was_repeated for found in rounds)} of {len(rounds)}",
    }


def fault_facts(rounds: Sequence[Round]) -> dict[str, str]:
    """How often the client finds fault with a run; with which, the JSON says.

    Mostly it is that its event loop was late: it shares the cores with the servers, each of them alike.
    """
    runs = [seen for found in rounds for seen in found.seen.values()]
    return {
        "runs that the client finds fault with": f"{sum(bool(seen.faults) for seen in runs)} of {len(runs)}"
    }
