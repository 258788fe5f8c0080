"""What pictures are drawn from: it has to be what the figures are of."""

from __future__ import annotations

from dataclasses import replace as replace_planned
from itertools import pairwise

import pytest
from msgspec.structs import replace

from loadtest.plan import Reading
from loadtest.report.samples import (
    Looks,
    all_rows,
    growth_per_s,
    in_flight,
    round_bin_s,
    samples,
    share_within,
    together,
    tokens_per_s,
)
from loadtest.report.words import E2E, E2E_FROM_SEND, ITL, MEASURES, TPOT, TTFT, TTFT_FROM_SEND, Measure
from loadtest.results import RequestRow, Series
from loadtest.summary import rows, summarize
from tests.support.load_reports import distribution, run_report
from tests.support.scripted_driver import Answer
from tests.support.virtual_runs import open_plan, requests, run_plan


@pytest.mark.parametrize(
    "measure", [TTFT, TTFT_FROM_SEND, ITL, TPOT, E2E, E2E_FROM_SEND], ids=lambda m: m.short
)
def test_samples_have_the_percentiles_of_the_summary(measure: Measure) -> None:
    report = run_report(failing=0.1, leaving=0.1, repeats=2)
    found, said = distribution(samples(all_rows(report), measure)), measure.of(report.summary)
    assert found is not None and said is not None
    assert (found.count, found.p50, found.p99) == (
        said.count,
        pytest.approx(said.p50),
        pytest.approx(said.p99),
    )


def test_time_per_token_of_several_choices_is_by_the_tokens_of_one() -> None:
    row = replace(answered(first=100.0, pieces=[[100.0, 200.0], [110.0, 300.0]], tokens=6), n=2)
    assert samples([row], TPOT) == pytest.approx([100.0])
    assert samples([row], ITL) == pytest.approx([100.0, 190.0])


def test_samples_are_the_latencies_that_the_summary_is_of() -> None:
    """To the microsecond that a row has, with several choices and a slow reader."""
    singles = [replace_planned(one, n=2) for one in requests([0.1 * number for number in range(30)])]
    singles[3] = replace_planned(singles[3], reading=Reading(pause_s=1.0))
    run = run_plan(open_plan(singles), lambda planned: Answer([[0.31, 0.5], [0.37, 0.45, 0.6]], 0.7))
    summary, of_run = summarize([run.measured], None), rows(run.measured)
    for measure in MEASURES:
        found, said = distribution(samples(of_run, measure)), measure.of(summary)
        assert found is not None and said is not None and found.count == said.count > 0
        assert (found.p50, found.p99) == pytest.approx((said.p50, said.p99), abs=0.002)


def test_the_share_within_a_limit_is_of_all_that_could_have_kept_it() -> None:
    """As attainment is: failures are misses, and who left or read slowly was not to keep it."""
    kept, late = (answered(first, [[first, 500.0]], 2) for first in (90.0, 110.0))
    failed = RequestRow(0, 0, 8, 8, 0.0, 0.0, None, 1.0, "failed")
    left = replace(kept, outcome="left")
    slow = replace(late, pause_ms=200.0)
    assert share_within([kept, kept, late, failed, left, slow], TTFT, 100.0) == 2 / 4
    assert share_within([answered(90.0, [[90.0]], 1)], ITL, 1.0) == 1.0, "it has no gap to be too long"
    assert share_within([left], TTFT, 100.0) is None


def test_what_did_not_complete_has_no_latency() -> None:
    row = RequestRow(0, 0, 8, 8, 0.0, 1.0, 5.0, 9.0, "left", piece_ms=[[5.0, 9.0]])
    assert [samples([row], measure) for measure in (TTFT, ITL, TPOT, E2E)] == [[], [], [], []]


def test_requests_in_flight_are_those_sent_and_not_ended() -> None:
    rows = [
        RequestRow(0, 0, 8, 8, 0.0, 0.0, 100.0, 2000.0, "completed"),
        RequestRow(1, 0, 8, 8, 0.0, 1000.0, None, None, "unfinished"),
        RequestRow(2, 0, 8, 8, 0.0, None, None, None, "unfinished"),
    ]
    steps = in_flight(rows, until_ms=3000.0)
    assert list(zip(steps.at_s, steps.values, strict=True)) == [
        (0.0, 0.0),
        (0.0, 1.0),
        (1.0, 2.0),
        (2.0, 1.0),
        (3.0, 0.0),
    ]


def test_of_very_many_requests_in_flight_the_peaks_remain() -> None:
    rows = [RequestRow(i, 0, 8, 8, 10.0 * i, 10.0 * i, None, 10.0 * i + 5, "completed") for i in range(5000)]
    rows += [RequestRow(9000 + i, 0, 8, 8, 777.0, 777.0, None, 778.0, "completed") for i in range(7)]
    steps = in_flight(rows, until_ms=50_000.0)
    assert len(steps.at_s) < 1000
    assert max(steps.values) == 7


def test_of_very_many_looks_growth_stays_the_same_in_all() -> None:
    at_ms = [500.0 * i for i in range(5000)]
    looks = together({"bytes": series("bytes", at_ms, [float(i * i) for i in range(5000)])})
    rates = growth_per_s(looks)
    seconds = [after - before for before, after in pairwise(looks.at_s)]
    grown = sum(rate * gap for rate, gap in zip(rates.values["bytes"], seconds, strict=True))
    assert len(looks.at_s) < 1000
    assert grown == pytest.approx(looks.values["bytes"][-1])


def test_every_token_is_in_a_bin_also_when_pieces_have_several() -> None:
    row = answered(first=0.0, pieces=[[0.0, 400.0, 600.0, 1000.0]], tokens=12)
    rate = tokens_per_s([row], until_ms=1000.0, bin_s=0.5)
    assert rate.values == [12.0, 6.0, 6.0]
    assert sum(rate.values) * 0.5 == 12


def test_measures_that_were_not_seen_together_keep_their_values() -> None:
    looks = together({"a": series("a", [0.0, 1000.0], [3.0, 4.0]), "b": series("b", [500.0], [7.0])})
    assert looks == Looks([0.0, 0.5, 1.0], {"a": [3.0, 3.0, 4.0], "b": [0.0, 7.0, 7.0]})


def test_a_counter_becomes_its_growth_a_second() -> None:
    looks = together({"bytes": series("bytes", [0.0, 500.0, 2500.0], [0.0, 100.0, 100.0])})
    assert growth_per_s(looks) == Looks([0.0, 0.5], {"bytes": [200.0, 0.0]})


@pytest.mark.parametrize(
    ("span_s", "size_s"), [(0.0, 0.1), (15.0, 0.1), (45.0, 0.5), (600.0, 5.0), (3600.0, 20.0)]
)
def test_bins_are_round_and_not_too_many(span_s: float, size_s: float) -> None:
    assert round_bin_s(span_s, most=200) == pytest.approx(size_s)


def answered(first: float, pieces: list[list[float]], tokens: int) -> RequestRow:
    end = max(time for times in pieces for time in times)
    return RequestRow(0, 0, 8, 8, 0.0, 0.0, first, end, "completed", "", 8, tokens, None, pieces)


def series(name: str, at_ms: list[float], values: list[float]) -> Series:
    return Series(name, name, "", False, at_ms, values)
