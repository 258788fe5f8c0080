"""The pictures of docs/loadtest.md: ``python -m tests.support.load_pictures DIRECTORY``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from loadtest.report.plots import Picture, parts_of
from loadtest.report.style import WIDE, save_png
from tests.support.load_reports import Setting, compare_report, run_report, sweep_report

BUSY = Setting(rate=3.2, num_requests=160, cap=14, failing=0.04, leaving=0.04, repeats=3)
LOADS = (0.5, 1, 1.41, 2, 2.18, 2.38, 2.83, 4, 8)


def pictures() -> Iterator[tuple[str, Picture]]:
    """Each with the name of its file."""
    for picture in parts_of(run_report(BUSY))[0].pictures:
        yield f"load-{picture.name}", picture
    sweep = sweep_report(replace(Setting(), num_requests=200), LOADS, knee=4)
    cost, loads, moving = parts_of(sweep)[0].pictures
    yield from (("load-cost", cost), ("load-limit", loads), ("load-moving", moving))
    yield "load-ratios", parts_of(compare_report())[0].pictures[0]


if __name__ == "__main__":
    for name, picture in pictures():
        save_png(picture.drawn(WIDE), Path(sys.argv[1]) / f"{name}.png")
