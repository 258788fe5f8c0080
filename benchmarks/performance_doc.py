"""The tables of docs/performance.md: ``python -m benchmarks.performance_doc`` writes them anew.

Each stands between two comments that name it, and is made of a report that is kept: nobody edits a figure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.bench_rows import COLUMNS, PartFound, cells
from benchmarks.cpu_engine import steps

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
BENCH = DOCS / "benchmarks" / "bench.json"
STEPS = DOCS / "benchmarks" / "cpu_engine_steps.json"
_NOT_YET = "Not measured yet."


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a line that has nothing but its name, such as a section's, in bold."""
    lines = [columns, ["---"] * len(columns)]
    lines += [(f"**{row[0]}**", *row[1:]) if not any(row[1:]) else row for row in rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '·') for cell in line)} |" for line in lines)


def bench_table(report: dict[str, Any]) -> str:
    """All of ``make bench``, and below it how it was measured."""
    parts = msgspec.convert(report["parts"], type=dict[str, PartFound])
    sections = [section for part in parts.values() for section in part.sections]
    machine = report["machine"]
    dates = " and ".join(sorted({part.date for part in parts.values()}))
    said = f"{dates}, {machine['processor']}, {machine['system']}, Python {machine['python']}."
    if any(part.is_quick for part in parts.values()):
        said = f"{said} **A quick run, whose figures mean little.**"
    facts = [f"- {name}: {fact}" for section in sections for name, fact in section.facts.items()]
    return "\n".join([said, "", markdown(COLUMNS, cells(sections)), "", *facts]).rstrip()


def steps_table(stages: Sequence[steps.Stage]) -> str:
    machines = dict.fromkeys(stage.machine for stage in stages)
    return f"In ms, on {' and '.join(machines)}.\n\n{markdown(steps.COLUMNS, steps.cells(stages))}"


def filled(page: str, name: str, table: str) -> str:
    """The page with ``table`` between the comments that name it, which must be there once."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    assert found and found_end, f"the page has no place for {name}"
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def rewritten(page: str, bench: Path, stages: Path) -> str:
    """The page with the tables of the reports that are there."""
    table = bench_table(json.loads(bench.read_text())) if bench.exists() else _NOT_YET
    page = filled(page, "bench", table)
    return filled(page, "steps", steps_table(steps.read_stages(stages)) if stages.exists() else _NOT_YET)


def main() -> None:
    PAGE.write_text(rewritten(PAGE.read_text(), BENCH, STEPS))


if __name__ == "__main__":
    main()
