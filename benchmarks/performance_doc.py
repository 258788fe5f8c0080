"""The tables of docs/performance.md: ``python -m benchmarks.performance_doc`` writes them anew.

Each stands between two comments that name it, and is made of a report that is kept: nobody edits a figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.bench_rows import COLUMNS, PartFound, cells
from benchmarks.cpu_engine import steps

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
REPORTS = DOCS / "benchmarks"


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


@dataclass(frozen=True, slots=True)
class Place:
    """Where the table of the report at ``path`` stands: between the comments that name it."""

    name: str
    path: Path
    table: Callable[[Path], str]

    def filled(self, page: str) -> str:
        """The page with the table, or with a word that there is none yet. It must have the comments."""
        begin, end = f"<!-- {self.name} -->\n", f"<!-- end of {self.name} -->"
        before, found, rest = page.partition(begin)
        _, found_end, after = rest.partition(end)
        assert found and found_end, f"the page has no place for {self.name}"
        table = self.table(self.path) if self.path.exists() else "Not measured yet."
        return f"{before}{begin}\n{table}\n\n{end}{after}"


def _of_bench(path: Path) -> str:
    return bench_table(json.loads(path.read_text()))


def _of_steps(path: Path) -> str:
    return steps_table(steps.read_stages(path))


def places(reports: Path = REPORTS) -> tuple[Place, ...]:
    """Of two machines: one with AVX-512, and one with AVX2 alone."""
    return (
        Place("bench", reports / "bench.json", _of_bench),
        Place("bench avx2", reports / "bench_avx2.json", _of_bench),
        Place("steps", reports / "cpu_engine_steps.json", _of_steps),
        Place("steps avx2", reports / "cpu_engine_steps_avx2.json", _of_steps),
    )


def rewritten(page: str, tables: Iterable[Place]) -> str:
    for place in tables:
        page = place.filled(page)
    return page


def main() -> None:
    PAGE.write_text(rewritten(PAGE.read_text(), places()))


if __name__ == "__main__":
    main()
