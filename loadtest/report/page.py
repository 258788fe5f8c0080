"""The report as one HTML file that needs nothing else: styles and pictures are in it, no script, no network.

It follows the reader's light or dark, and has each picture twice, for a desk and for a phone.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from loadtest.report import words
from loadtest.report.plots import Picture, parts_of
from loadtest.report.style import NARROW, PALETTE, WIDE, inline_svg
from loadtest.report.table import point_remarks
from loadtest.results import CompareReport, Report, RunReport, SweepReport

_KINDS = {RunReport: "run", SweepReport: "sweep", CompareReport: "comparison"}


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A picture as the page has it. ``wide`` and ``narrow`` are SVG."""

    picture: Picture
    wide: Markup
    narrow: Markup


def write_html(report: Report, path: Path) -> None:
    path.write_text(html_page(report), encoding="utf-8")


def html_page(report: Report) -> str:
    """Self-contained: no address in it is ever asked for anything."""
    files = resources.files("loadtest.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "figure": words.figure, "number": words.number, "percent": words.percent, "between": words.between,
        "slo": words.slo_words,
    }  # fmt: skip
    template = environment.from_string(files.joinpath("page.html").read_text(encoding="utf-8"))
    settings_of = _settings_of(report)
    first = next(iter(settings_of.values()), None)
    page = template.render(
        report=report,
        kind=_KINDS[type(report)],
        styles=Markup(_colours() + files.joinpath("page.css").read_text(encoding="utf-8")),
        faults=words.faults_of(report),
        notes=words.notes_of(report),
        parts=[(part, [_drawing(picture) for picture in part.pictures]) for part in parts_of(report)],
        measures=words.MEASURES,
        settings_of=settings_of,
        first=first,
        command="" if first is None else shlex.join(["tideload", *first.tool.arguments]),
        words=words,
        remarks=point_remarks,
    )
    return page.lstrip()


def _settings_of(report: Report) -> dict[str, RunReport]:
    """Runs whose settings tell those of all, by what sets them apart."""
    match report:
        case RunReport():
            return {"": report}
        case SweepReport():
            return {"": report.points[0].run} if report.points else {}
        case CompareReport():
            return {"A": report.a, "B": report.b}


def _drawing(picture: Picture) -> _Drawing:
    wide, narrow = (
        Markup(inline_svg(picture.drawn(sheet), f"{picture.name}-{sheet.width}")) for sheet in (WIDE, NARROW)
    )
    return _Drawing(picture, wide, narrow)


def _colours() -> str:
    light, dark = (
        " ".join(f"--{name}: {pair[theme]};" for name, pair in PALETTE.items()) for theme in (0, 1)
    )
    return (
        f":root {{ {light} color-scheme: light; }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} color-scheme: dark; }} }}\n"
    )
