"""The one table of a check: each figure beside its limit, what was missed, what failed and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_check.figures import DRY_RUN, Figure, Outcome, PartReport, Report, Verdict

COLUMNS = ("", "measured", "±", "limit", "ratio", "target", "")
_WORDS = {Verdict.MET: "met", Verdict.MISSED: "MISSED", Verdict.UNKNOWN: "not known", None: ""}
_SIZES = {
    DRY_RUN: "  (a dry run: sizes are tiny, its figures mean nothing)",
    "quick": "  (quick: fewer sizes and repeats)",
}
_DIGITS = 3  # that a figure is shown with, at least


def title(report: Report) -> str:
    """What was measured on, on two lines."""
    machine = report.machine
    card = ", ".join(machine[key] for key in ("card", "memory") if key in machine)
    versions = ", ".join(f"{key} {machine[key]}" for key in ("driver", "torch", "triton") if key in machine)
    sizes = _SIZES.get(report.scale, "")
    return f"GPU check of {report.date}{sizes}\n{card or 'nothing known of the machine'}; {versions}"


def rows(report: Report) -> list[tuple[str, ...]]:
    """One for each part, and below it one for each of its figures and failures."""
    return [row for part in report.parts for row in _part(part, report.is_dry_run)]


def _part(part: PartReport, is_dry_run: bool) -> Iterator[tuple[str, ...]]:
    how = "" if part.outcome is Outcome.DONE else f" {part.outcome}"
    yield (f"{part.name} ({part.seconds:.0f} s)", "", "", "", "", "", how.strip())
    for figure in part.figures:
        yield _figure(figure, is_dry_run)
    for failure in part.failures:
        yield (f"  {failure.name}: {failure.reason}", "", "", "", "", "", "failed")
    if part.reason and part.reason not in {failure.reason for failure in part.failures}:
        yield (f"  {part.reason}", "", "", "", "", "", "")


def _figure(figure: Figure, is_dry_run: bool) -> tuple[str, ...]:
    spread = "" if figure.spread is None else f"{100 * figure.spread:.0f} %"
    limit = "" if not figure.beside else "not measured" if figure.limit is None else number(figure.limit)
    ratio = "" if figure.ratio is None else number(figure.ratio)
    return (
        f"  {figure.name}",
        f"{number(figure.value)} {figure.unit}",
        spread,
        limit,
        ratio,
        _target(figure),
        "" if is_dry_run else _WORDS[figure.verdict],
    )


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    sign = "≤" if figure.is_ceiling else "≥"
    return f"{sign} {figure.target:g}" + ("" if figure.beside else f" {figure.unit}")


def number(value: float) -> str:
    """With three digits, or all that stand before the point."""
    if value == 0 or abs(value) >= 10**_DIGITS:
        return f"{value:,.0f}"
    return f"{value:.{_DIGITS}g}"
