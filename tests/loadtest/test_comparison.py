"""Comparisons of servers whose true difference is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from loadtest.comparison import FEWEST_ROUNDS, Compared, Pair, compare, comparison_report, order, verdict
from loadtest.results import Distribution, Summary
from tests.loadtest.test_describe import report


def spread(p50: float) -> Distribution:
    return Distribution(
        count=10, mean=p50, p50=p50, p90=2 * p50, p95=2 * p50, p99=3 * p50, max=3 * p50, intervals={}
    )


def summary(ttft_ms: float, **others: Any) -> Summary:
    """One that has its time to the first token, and what is given."""
    values: dict[str, Any] = dict.fromkeys(Summary.__struct_fields__, None)
    values |= {"ttft_ms": spread(ttft_ms)}
    return Summary(**{**values, **others})


def rounds(number: int, draw: Callable[[random.Random], tuple[float, float]], seed: int = 0) -> list[Pair]:
    draws = random.Random(seed)
    return [Pair(*map(summary, draw(draws))) for _ in range(number)]


def noisy(ratio: float) -> Callable[[random.Random], tuple[float, float]]:
    """Both drift by up to a half from round to round, together; alone they differ by some percent."""

    def draw(draws: random.Random) -> tuple[float, float]:
        drift = draws.uniform(100, 150)
        return drift * draws.uniform(0.98, 1.02), drift * ratio * draws.uniform(0.98, 1.02)

    return draw


def test_they_take_turns_so_that_neither_is_always_first() -> None:
    assert order(4) == ["A", "B", "B", "A", "A", "B", "B", "A"]
    assert order(1) == ["A", "B"]


def test_a_difference_is_told_with_its_size_and_its_ends() -> None:
    found = {ratio.measure: ratio for ratio in compare(rounds(8, noisy(1.2))).ratios}
    ttft = found["ttft_ms p50"]
    assert ttft.ratio == pytest.approx(1.2, abs=0.04)
    assert 1 < ttft.interval.low < 1.2 < ttft.interval.high
    assert ttft.verdict.startswith("B is 19 % higher (17 % to 21 %)")
    assert ttft.verdict.endswith("worse.")
    assert "higher" in ttft.verdict
    assert set(found) == {"ttft_ms p50", "ttft_ms p99"}


def test_what_both_rounds_had_in_common_cancels_out() -> None:
    """The drift is ten times the difference between the two."""
    ratio = compare(rounds(8, noisy(1.0))).ratios[0]
    assert ratio.interval.low <= 1 <= ratio.interval.high
    assert ratio.interval.high / ratio.interval.low < 1.1
    assert ratio.verdict.startswith("No difference seen; one of ")
    wild = compare(rounds(8, lambda draws: (draws.uniform(1, 9), draws.uniform(1, 9)))).ratios[0]
    assert wild.verdict == "No difference seen; only one of more than 100 % would have been."


def test_the_size_that_would_have_been_seen_is_seen_if_it_is_there() -> None:
    seen = 0
    for seed in range(20):
        alike = compare(rounds(8, noisy(1.0), seed)).ratios[0].interval
        different = compare(rounds(8, noisy(alike.high / alike.low), 100 + seed)).ratios[0].interval
        seen += different.low > 1
    assert seen >= 16


def test_servers_that_do_not_differ_are_seldom_said_to() -> None:
    alarms = 0
    for seed in range(20):
        ratio = compare(rounds(FEWEST_ROUNDS, noisy(1.0), seed)).ratios[0]
        alarms += not ratio.interval.low <= 1 <= ratio.interval.high
    assert alarms <= 3


def test_fewer_than_six_rounds_are_not_told_apart() -> None:
    pairs = rounds(FEWEST_ROUNDS - 1, noisy(2.0))
    found = compare(pairs)
    assert {ratio.verdict for ratio in found.ratios} == {"Too few rounds to tell."}
    assert "Too few rounds" in verdict(found, len(pairs))
    assert compare(pairs[:1]) == Compared([], [])


def test_more_output_is_better_and_less_latency_is() -> None:
    pairs = [
        Pair(summary(100.0 + index, output_tok_s=100.0), summary(50.0 + index, output_tok_s=200.0))
        for index in range(6)
    ]
    found = compare(pairs)
    by_measure = {ratio.measure: ratio for ratio in found.ratios}
    assert by_measure["output_tok_s"].verdict == "B is 100 % higher (100 % to 100 %): better."
    assert not by_measure["output_tok_s"].lower_is_better
    assert by_measure["ttft_ms p50"].verdict.endswith("better.")
    said = verdict(found, 6)
    assert said.startswith("B is better in ttft_ms p50, ")
    assert "worse" not in said
    swapped = verdict(compare([Pair(pair.b, pair.a) for pair in pairs]), 6)
    assert swapped.startswith("B is worse in ttft_ms p50, ")


def test_a_measure_that_one_round_lacks_is_not_compared() -> None:
    pairs = [Pair(summary(100.0, tpot_ms=spread(9.0)), summary(100.0, tpot_ms=spread(9.0))) for _ in range(6)]
    assert "tpot_ms p50" in {ratio.measure for ratio in compare(pairs).ratios}
    pairs[3] = Pair(pairs[3].a, structs.replace(pairs[3].b, tpot_ms=None))
    found = compare(pairs)
    assert {ratio.measure for ratio in found.ratios} == {"ttft_ms p50", "ttft_ms p99"}
    assert verdict(found, 6).endswith("Not compared: tpot_ms p50 (not had in every round).")
    assert verdict(Compared([], []), 6).startswith("Nothing to compare")


def test_a_round_without_any_is_a_round_all_the_same() -> None:
    pairs = [
        Pair(summary(100.0, goodput=5.0 + index / 10), summary(100.0, goodput=0.0 if index % 3 else 0.1))
        for index in range(6)
    ]
    found = compare(pairs)
    (goodput,) = (ratio for ratio in found.ratios if ratio.measure == "goodput")
    assert (goodput.a, goodput.b, goodput.ratio) == (5.25, 0.0, 0.0)
    assert goodput.verdict.startswith("B is 100 % lower")
    assert "worse in goodput" in verdict(found, 6)


def test_what_only_one_of_them_has_is_named_with_both_figures() -> None:
    pairs = [Pair(summary(100.0, goodput=0.0), summary(100.0, goodput=5.0)) for _ in range(6)]
    found = compare(pairs)
    assert [ratio.measure for ratio in found.ratios] == ["ttft_ms p50", "ttft_ms p99"]
    assert verdict(found, 6).endswith("Not compared: goodput (in the median 0 at A, 5 at B: no ratio).")


def test_under_an_open_load_rates_are_what_was_asked() -> None:
    figures = {"output_tok_s": 9.0, "request_rate": 2.0, "goodput": 1.0, "slo_attainment": 0.5}
    pairs = [Pair(summary(100.0, **figures), summary(100.0, **figures)) for _ in range(6)]

    def compared(is_open: bool) -> set[str]:
        return {ratio.measure for ratio in compare(pairs, is_open=is_open).ratios} - {
            "ttft_ms p50", "ttft_ms p99",
        }  # fmt: skip

    assert compared(is_open=True) == {"slo_attainment"}
    assert compared(is_open=False) == {"output_tok_s", "request_rate", "goodput"}


def test_of_many_measures_one_that_is_off_by_itself_is_only_perhaps_so() -> None:
    """All six pairs agree, as of one in thirty-two that do not differ they do; and by a little only."""
    ratios = (1.01, 1.10, 1.02, 1.09, 1.03, 1.04)
    pairs = [
        Pair(summary(100.0, output_tok_s=100.0 + index % 2), summary(100.0 * ratio, output_tok_s=100.0))
        for index, ratio in enumerate(ratios)
    ]
    many = compare(pairs)
    by_measure = {ratio.measure: ratio for ratio in many.ratios}
    assert by_measure["ttft_ms p50"].interval.low > 1
    assert by_measure["ttft_ms p50"].difference == "perhaps"
    assert "one may look so by chance" in by_measure["ttft_ms p50"].verdict
    assert verdict(many, 6).startswith("No difference beyond chance")


def test_the_one_that_fails_more_is_named_before_it_is_praised() -> None:
    repeats = report().repeats[:1] * 6
    a, b = (
        structs.replace(
            report(ttft_ms=spread(ttft), completed=60, failed=failed),
            repeats=[
                structs.replace(repeat, summary=summary(ttft + index)) for index, repeat in enumerate(repeats)
            ],
        )
        for ttft, failed in ((100.0, 0), (50.0, 40))
    )
    found = comparison_report(a, b)
    assert found.verdict.startswith("B fails more: 0 of 60 requests failed at A, 40 of 100 at B.")
    assert "B is better in ttft_ms p50" in found.verdict


def test_what_is_no_difference_of_what_completed_is_not_called_none_at_all() -> None:
    repeats = [structs.replace(report().repeats[0], summary=summary(100.0))] * 6
    a, b = (
        structs.replace(report(), repeats=repeats, summary=structs.replace(report().summary, failed=failed))
        for failed in (0, 100)
    )
    assert "No difference beyond chance was seen in what completed" in comparison_report(a, b).verdict


def test_the_same_rounds_give_the_same_figures() -> None:
    pairs = rounds(6, noisy(1.1))
    assert compare(pairs) == compare(pairs)
    assert (
        verdict(compare(rounds(8, noisy(1.0))), 8) == "No difference beyond chance was seen between A and B."
    )


def test_a_comparison_pairs_repeats_and_leaves_out_a_round_that_was_broken_off() -> None:
    repeats = [structs.replace(report().repeats[0], summary=summary(100.0))] * 6
    a, b = (structs.replace(report(), repeats=repeats) for _ in "AB")
    found = comparison_report(a, b)
    assert found.order == order(6)
    assert "No difference beyond chance" in found.verdict
    cut = structs.replace(b, interrupted=True)
    assert "Too few rounds to tell A from B: 5." in comparison_report(a, cut).verdict
    shorter = structs.replace(a, repeats=repeats[:5])
    assert comparison_report(shorter, b).order == order(6)[:11]
    failing = structs.replace(b, summary=structs.replace(b.summary, failed=3))
    assert "0 of 200 requests failed at A, 3 of 203 at B" in comparison_report(a, failing).notes[0]
