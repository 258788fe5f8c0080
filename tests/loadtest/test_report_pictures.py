"""The pictures: that there are the right ones, and that what is drawn is what was found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from msgspec import structs

from loadtest.report.over_time import some_of
from loadtest.report.plots import parts_of, write_pngs
from loadtest.report.style import NARROW, PALETTE, WIDE, Sheet, ramp
from loadtest.report.words import percent, value_words
from loadtest.results import Distribution, Interval, Report, RequestRow, Series
from tests.support.load_reports import Setting, compare_report, run_report, sweep_report

SMALL = Setting(num_requests=30)


def drawn(report: Report, name: str, sheet: Sheet = WIDE) -> Figure:
    (picture,) = [picture for part in parts_of(report) for picture in part.pictures if picture.name == name]
    figure = picture.drawn(sheet)
    figure.draw_without_rendering()  # warns where things do not fit
    return figure


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def names(report: Report) -> list[str]:
    return [picture.name for part in parts_of(report) for picture in part.pictures]


def test_a_run_has_its_pictures_as_files_that_are_pictures(tmp_path: Path) -> None:
    paths = write_pngs(run_report(SMALL), tmp_path / "new")
    assert [path.name for path in paths] == ["distributions.png", "timeline.png", "waterfall.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_share_beside_the_limit_counts_failures_as_attainment_does() -> None:
    report = run_report(failing=0.5, num_requests=60)
    rows = report.repeats[0].requests
    met = sum(row.outcome == "completed" and (row.first_ms or 0.0) - row.intended_ms <= 500.0 for row in rows)
    said = [text for text in texts(drawn(report, "distributions")) if text.startswith("SLO 500")]
    assert said == [f"SLO 500, kept by {percent(met / 60)}"]


def test_a_sweep_has_its_curves_first_and_then_both_sides_of_the_limit() -> None:
    sweep = sweep_report(SMALL, rates=(1, 2, 4, 8))
    sweep = structs.replace(sweep, highest_within_slo=4.0, lowest_beyond_slo=8.0)
    shown = names(sweep)
    assert shown[:3] == ["latency-throughput", "load", "distributions"]
    assert [name for name in shown if name.startswith("waterfall")] == ["waterfall-at-4", "waterfall-at-8"]


def test_a_comparison_has_both_sides() -> None:
    assert names(compare_report(SMALL)) == [
        "ratios", "distributions", "distributions-a", "timeline-a", "waterfall-a", "distributions-b",
        "timeline-b", "waterfall-b",
    ]  # fmt: skip


def test_names_of_pictures_are_their_own() -> None:
    for report in (run_report(SMALL), sweep_report(SMALL), compare_report(SMALL)):
        assert len(set(names(report))) == len(names(report))


def test_curves_pass_through_the_figures_they_are_marked_with() -> None:
    report = run_report()
    panel = drawn(report, "distributions").axes[0]
    curve = max(panel.lines, key=lambda line: line.get_linewidth() if len(line.get_xdata()) > 9 else 0)
    found = report.summary.ttft_ms
    assert isinstance(found, Distribution)
    below = [
        share for value, share in zip(curve.get_xdata(), curve.get_ydata(), strict=True) if value <= found.p90
    ]
    assert below[-1] == pytest.approx(0.9, abs=1 / report.summary.completed)
    assert any(text.startswith("p90") for text in texts(panel.figure))  # type: ignore[arg-type]


def test_the_waterfall_marks_every_failure() -> None:
    report = run_report(num_requests=60, failing=0.2)
    for axes in drawn(report, "waterfall").axes:
        (failed,) = [line for line in axes.lines if line.get_label() == "failed"]
        assert len(failed.get_xdata()) == report.summary.failed > 3


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes]


def test_the_timeline_shows_what_the_server_tells_and_nothing_else() -> None:
    with_tiers, without = run_report(SMALL), run_report(SMALL, has_metrics=False)
    assert [title.split()[0] for title in titles(drawn(with_tiers, "timeline"))] == [
        "Requests",
        "Output",
        "KV",
        "KV",
    ]
    assert [title.split()[0] for title in titles(drawn(without, "timeline"))] == ["Requests", "Output"]
    one_cache = [Series("kv_share", "vllm:kv_cache_usage_perc", "share", False, [0.0, 500.0], [0.1, 0.6])]
    (repeat,) = without.repeats
    other = structs.replace(without, repeats=[structs.replace(repeat, server=one_cache)])
    kv = drawn(other, "timeline").axes[-1]
    assert [list(line.get_ydata()) for line in kv.lines] == [[0.1, 0.6]]


def test_a_point_that_is_not_to_be_trusted_is_hollow() -> None:
    sweep = sweep_report(SMALL, rates=(1, 2))
    late = structs.replace(sweep.points[1], run=run_report(SMALL, rate=2.0, lag_ms=8.0))
    throughput = drawn(structs.replace(sweep, points=[sweep.points[0], late]), "load").axes[0]
    dots = [line for line in throughput.lines if line.get_marker() == "o"]
    assert [dot.get_markerfacecolor() == PALETTE["surface"][0] for dot in dots] == [False, True]


def test_knee_and_limit_stand_where_they_were_found() -> None:
    sweep = sweep_report(SMALL, rates=(1, 2, 4), knee=2)
    sweep = structs.replace(sweep, highest_within_slo=2.0, lowest_beyond_slo=4.0)
    throughput, attainment = drawn(sweep, "load").axes
    assert [line.get_xdata() for line in throughput.lines if line.get_linestyle() == "--"] == [[2, 2]]
    (band,) = attainment.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (2.0, 4.0)  # type: ignore[attr-defined]
    assert "limit: 2 to 4" in texts(attainment.figure)  # type: ignore[arg-type]


def test_the_ends_of_what_is_seen_are_named_and_not_those_of_what_is_not() -> None:
    sweep = sweep_report()
    *others, last = sweep.points
    summary = structs.replace(
        last.run.summary, completed=0, ttft_ms=None, itl_ms=None, tpot_ms=None, e2e_ms=None
    )
    gone = structs.replace(last, run=structs.replace(last.run, summary=summary, repeats=[]))
    found = drawn(structs.replace(sweep, points=[*others, gone]), "distributions")
    named = [text.get_text() for text in found.axes[0].get_legend().get_texts()]
    assert named == [value_words(sweep, point.value) for point in (others[0], others[-1])]


def test_a_sweep_in_which_nothing_completed_is_drawn() -> None:
    drawn(sweep_report(Setting(num_requests=20, failing=1.0), rates=(1, 2)), "latency-throughput")


def test_of_many_requests_failures_are_left_out_last() -> None:
    rows = [
        RequestRow(i, 0, 8, 8, float(i), float(i), None, i + 1.0, "failed" if i % 97 == 0 else "completed")
        for i in range(1000)
    ]
    shown = some_of(rows, 100)
    assert len(shown) == 100
    assert sum(row.outcome == "failed" for row in shown) == 11
    assert shown == sorted(shown, key=lambda row: row.index)
    assert max(b.index - a.index for a, b in pairwise(shown)) <= 24


EDGES = {
    "nothing completed": run_report(SMALL, failing=1.0),
    "one request": run_report(SMALL, num_requests=1, slo=False),
    "no metrics": run_report(SMALL, has_metrics=False),
    "a closed load": run_report(SMALL, rate=None),
    "no repeats": structs.replace(run_report(SMALL), repeats=[]),
    "hundreds of requests": run_report(num_requests=700, leaving=0.1, failing=0.1, repeats=2),
}


@pytest.mark.parametrize("edge", EDGES)
def test_a_run_at_the_edge_is_drawn_all_the_same(edge: str) -> None:
    for name in names(EDGES[edge]):
        drawn(EDGES[edge], name, NARROW)


def test_a_sweep_of_nothing_has_no_pictures() -> None:
    sweep = structs.replace(sweep_report(SMALL, rates=(1,)), points=[], knee=None, highest_within_slo=None)
    assert names(sweep) == []


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_sweeps_and_comparisons_are_drawn(sheet: Sheet) -> None:
    drawn(sweep_report(Setting(num_requests=30, failing=0.2)), "latency-throughput", sheet)
    drawn(sweep_report(SMALL, rates=(4,)), "load", sheet)
    drawn(sweep_report(SMALL, rates=(1, 2)), "distributions", sheet)
    drawn(compare_report(SMALL), "ratios", sheet)


def test_what_b_has_none_of_is_drawn_at_the_edge() -> None:
    report = compare_report(SMALL)
    none = structs.replace(
        report.ratios[0], b=0.0, ratio=0.0, interval=Interval(0.0, 0.0), difference="worse"
    )
    drawn(structs.replace(report, ratios=[none, *report.ratios[1:]]), "ratios", WIDE)


def test_what_a_server_is_called_is_no_formula() -> None:
    report = run_report(SMALL)
    odd = structs.replace(report, label="$\\frac{1", server=structs.replace(report.server, model="$x_{"))
    drawn(odd, "distributions", NARROW)


# ---- colours ----

# Machado, Oliveira, Fernandes: "A Physiologically-based Model for Simulation of Color Vision Deficiency"
# (2009), severity 1.0, for linear RGB.
BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TOGETHER = [("tide", "sand", "plum"), ("tide", "sand", "haze", "danger"), ("low", "middle", "high")]
APART = 15.0  # in CIELAB: several times what is just seen


def linear(colour: str) -> list[float]:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = times(to_xyz, [min(1.0, max(0.0, c)) for c in rgb])
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(a: str, b: str, blindness: str) -> float:
    seen = [lab(times(BLINDNESS[blindness], linear(colour))) for colour in (a, b)]
    return float(sum((p - q) ** 2 for p, q in zip(*seen, strict=True)) ** 0.5)


def pairs() -> Iterator[tuple[str, str]]:
    for group in TOGETHER:
        yield from combinations(group, 2)


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_that_stand_together_are_told_apart_by_everybody(theme: int, blindness: str) -> None:
    close = {
        (a, b): round(distance(PALETTE[a][theme], PALETTE[b][theme], blindness), 1)
        for a, b in pairs()
        if distance(PALETTE[a][theme], PALETTE[b][theme], blindness) < APART
    }
    assert close == {}


def luminance(colour: str) -> float:
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


@pytest.mark.parametrize("name", ["ink", "ink-2", "tide", "plum", "danger"])
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_of_text_are_strong_enough(theme: int, name: str) -> None:
    """As WCAG 2 counts contrast."""
    light, dark = sorted((luminance(PALETTE[one][theme]) for one in (name, "surface")), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_every_light_colour_is_one_names_alone() -> None:
    light = [pair[0] for pair in PALETTE.values()]
    assert len(set(light)) == len(light)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_a_ramp_grows_darker(count: int) -> None:
    lightness = [lab(linear(colour))[0] for colour in ramp(count)]
    assert lightness == sorted(lightness, reverse=True)
