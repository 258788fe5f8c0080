"""What an SLO is written like, and who has met it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.plan import PlannedRequest, Reading
from loadtest.slo import Slo, SloError, parse
from loadtest.timeline import Outcome, Timeline, Usage


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft=500ms,tpot=50ms", Slo(ttft_s=0.5, tpot_s=0.05)),
        ("e2e=2s", Slo(e2e_s=2.0)),
        ("e2el=2.5s", Slo(e2e_s=2.5)),
        (" itl = 200 ms , ttft = .5s ", Slo(ttft_s=0.5, itl_s=0.2)),
    ],
)
def test_limits_are_read_with_their_units(text: str, slo: Slo) -> None:
    assert parse(text) == slo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no limit; one is written like ttft=500ms or e2e=2s."),
        ("ttft=500", "'ttft=500' is no limit"),
        ("ttft:500ms", "'ttft:500ms' is no limit"),
        ("ttft=-1ms", "'ttft=-1ms' is no limit"),
        ("ttft=nans", "'ttft=nans' is no limit"),
        ("ttft=1ms,", "'' is no limit"),
        ("speed=3ms", "speed is no measure of an SLO; it knows ttft, tpot, itl and e2e."),
        ("ttft=1s,ttft=2s", "ttft has two limits."),
        ("e2e=1s,e2el=2s", "e2el has two limits."),
        ("tpot=0ms", "tpot must have a limit above 0."),
    ],
)
def test_what_is_no_slo_is_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SloError) as raised:
        parse(text)
    assert str(raised.value).startswith(message)


def test_an_slo_says_its_limits_in_ms() -> None:
    assert parse("e2e=2s,ttft=500ms").as_ms() == {"ttft": 500.0, "e2e": 2000.0}


def answered(*pieces: float, intended_at: float = 0.0, tokens: int | None = None) -> Timeline:
    planned = PlannedRequest(0, "", 5, 5)
    return Timeline(
        planned, 0, 5, intended_at, sent_at=1.0, piece_times=[list(pieces)], ended_at=pieces[-1] + 0.5,
        outcome=Outcome.COMPLETED, usage=Usage(5, len(pieces) if tokens is None else tokens),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slo", "just_met", "just_missed"),
    [
        ("ttft=2s", answered(2.0), answered(2.001)),
        ("tpot=1s", answered(2.0, 4.5, 5.0, 5.0), answered(2.0, 2.0, 2.0, 5.001)),
        ("itl=1s", answered(2.0, 3.0, 4.0), answered(2.0, 2.1, 3.2)),
        ("e2e=4s", answered(2.0, 3.5), answered(2.0, 3.501)),
        ("e2e=4s,ttft=2s", answered(2.0, 3.5), answered(2.001, 3.5)),
    ],
)
def test_a_request_meets_an_slo_if_it_keeps_every_limit(
    slo: str, just_met: Timeline, just_missed: Timeline
) -> None:
    assert parse(slo).met(just_met)
    assert not parse(slo).met(just_missed)


def test_limits_count_from_the_intended_time() -> None:
    assert parse("ttft=2s").met(answered(2.5, intended_at=0.5))
    assert not parse("ttft=2s").met(answered(2.5, intended_at=0.4))


def test_an_answer_of_one_token_has_no_gaps_to_be_too_long() -> None:
    assert parse("tpot=1ms,itl=1ms").met(answered(100.0))


def test_a_slow_reader_meets_none() -> None:
    timeline = answered(1.0)
    timeline.planned = replace(timeline.planned, reading=Reading(pause_s=0.2))
    assert not parse("e2e=100s").met(timeline)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LEFT, Outcome.UNFINISHED])
def test_what_did_not_complete_has_not_met_it(outcome: Outcome) -> None:
    timeline = answered(1.0)
    timeline.outcome = outcome
    assert not parse("e2e=100s").met(timeline)
