"""Figures as printed, and what is said before them."""

from __future__ import annotations

import pytest
from msgspec import structs

from loadtest.report.words import (
    alarm_of,
    faults_of,
    figure,
    intervals_words,
    kept_words,
    limit_words,
    notes_of,
    number,
    value_words,
)
from loadtest.results import SweepReport
from tests.support.load_reports import Setting, compare_report, run_report, sweep_report


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (None, "–"), (0, "0"), (0.01234, "0.0123"), (1, "1.00"), (9.996, "10.0"), (78.94, "78.9"),
        (99.96, "100"), (412.4, "412"), (12345.6, "12,346"), (-3.21, "-3.21"),
    ],
)  # fmt: skip
def test_figures_have_three_digits_or_all_before_the_point(value: float | None, printed: str) -> None:
    assert figure(value) == printed


@pytest.mark.parametrize(
    ("value", "printed"), [(4.0, "4"), (0.5, "0.5"), (5.656854, "5.657"), (1200.0, "1,200")]
)
def test_numbers_are_as_their_user_would_write_them(value: float, printed: str) -> None:
    assert number(value) == printed


def test_a_run_that_went_well_has_no_faults() -> None:
    assert faults_of(run_report()) == []


def test_a_run_off_schedule_says_why() -> None:
    report = run_report(lag_ms=8.0)
    assert faults_of(report) == report.schedule.faults != []


def test_being_off_schedule_is_a_fault_even_if_nobody_says_why() -> None:
    report = run_report()
    schedule = structs.replace(report.schedule, on_schedule=False)
    assert faults_of(structs.replace(report, schedule=schedule)) == ["The tool did not keep to its schedule."]


def test_what_is_said_of_a_run_that_went_well_is_true_of_its_answers_too() -> None:
    report = run_report()
    assert kept_words(report).endswith("counted the tokens that were planned.")
    free = structs.replace(report, server=structs.replace(report.server, forces_lengths=False))
    assert kept_words(free).endswith("it ended answers when it liked.")


def test_no_usage_is_a_fault_but_no_other_count() -> None:
    report = run_report()
    none = structs.replace(
        report.usage, within=False, planned_prompt_tokens=0, counted_prompt_tokens=0, note="Nothing."
    )
    summary = structs.replace(report.summary, tokens_per_piece=None, exact_token_times=False)
    untold = structs.replace(report, usage=none, summary=summary)
    (fault,) = faults_of(untold)
    assert fault.startswith("The server told no usage")
    assert any(note.startswith("Nobody knows how many tokens") for note in notes_of(untold))
    assert not any(note.startswith("Not every piece") for note in notes_of(untold))


def test_less_than_was_asked_for_is_a_fault_that_is_said_first() -> None:
    for report in (run_report(), sweep_report(), compare_report()):
        cut = structs.replace(report, cut_short="The server was gone.")
        assert faults_of(cut) == ["The server was gone.", *faults_of(report)]


def test_other_usage_than_planned_is_a_fault() -> None:
    report = run_report()
    usage = structs.replace(report.usage, within=False, note="Prompts are off by 7.00%.")
    (fault,) = faults_of(structs.replace(report, usage=usage))
    assert fault == "The server counted other tokens than were planned. Prompts are off by 7.00%."


def test_a_run_of_nothing_but_failures_is_at_fault_and_says_how_many() -> None:
    report = run_report(failing=1.0, num_requests=20)
    assert faults_of(report) == ["No request completed, so there are no latencies."]
    assert notes_of(report)[0].startswith("20 of 20 requests failed (100.0 %).")


def test_a_run_of_which_most_failed_is_at_fault() -> None:
    report = run_report()
    half = structs.replace(report.summary, completed=60, failed=60)
    assert faults_of(structs.replace(report, summary=half)) == []
    most = structs.replace(report.summary, completed=59, failed=61)
    (fault,) = faults_of(structs.replace(report, summary=most))
    assert fault.startswith("More than half of the requests failed")


def test_what_is_odd_about_the_pieces_or_the_load_is_told() -> None:
    report = run_report()
    gathered = structs.replace(report.summary, together_share=0.5, slow=3)
    schedule = structs.replace(report.schedule, notes=["Of 4 users 2 had something to ask."])
    said = notes_of(structs.replace(report, summary=gathered, schedule=schedule))
    assert any(note.startswith("50.0 % of the pieces came with the one before them") for note in said)
    assert any(note.startswith("3 requests were read slowly") for note in said)
    assert "Of 4 users 2 had something to ask." in said
    once = structs.replace(report.summary, together_share=0.05)
    assert not any("came with the one" in note for note in notes_of(structs.replace(report, summary=once)))


def test_intervals_of_few_repeats_are_not_said_to_hold_95() -> None:
    assert [intervals_words(run_report(repeats=number, num_requests=20)) for number in (1, 5, 6)] == [
        "95 % intervals", "intervals of 5 repeats", "95 % intervals",
    ]  # fmt: skip


def test_losses_come_before_the_runs_own_notes() -> None:
    report = run_report(failing=0.2)
    first, *others = notes_of(report)
    assert first.startswith(f"{report.summary.failed} of 120 requests failed")
    assert others == report.notes


def test_an_interrupted_run_says_so() -> None:
    assert any("interrupted" in note for note in notes_of(run_report(interrupted=True)))


def test_pieces_that_are_no_tokens_are_told() -> None:
    report = run_report()
    summary = structs.replace(report.summary, exact_token_times=False)
    assert any("between pieces" in note for note in notes_of(structs.replace(report, summary=summary)))


def test_a_sweep_tells_whose_fault_it_is_and_what_all_share_once() -> None:
    sweep = sweep_report(rates=(1, 2, 4))
    late = run_report(rate=2.0, lag_ms=8.0)
    points = [sweep.points[0], structs.replace(sweep.points[1], run=late), sweep.points[2]]
    sweep = structs.replace(sweep, points=points)
    assert faults_of(sweep) == [f"2 requests/s: {fault}" for fault in late.schedule.faults]
    assert alarm_of(sweep) == "Some of these figures are not to be trusted"
    assert alarm_of(late) == "These figures are not to be trusted"
    assert notes_of(sweep).count(late.notes[0]) == 1


def test_what_differs_between_loads_in_one_number_is_told_as_a_range() -> None:
    sweep = sweep_report(rates=(1, 2, 4))
    said = (
        ["61.6% of the tokens were cached.", "Left out: 1,203 rows.", "Of 2 users 1 asked."],
        ["8.4% of the tokens were cached.", "Of 64 users 31 asked."],
        ["40.0% of the tokens were cached.", "Left out: 98 rows."],
    )
    points = [
        structs.replace(point, run=structs.replace(point.run, notes=notes))
        for point, notes in zip(sweep.points, said, strict=True)
    ]
    notes = notes_of(structs.replace(sweep, points=points))
    assert "8.4 to 61.6% of the tokens were cached." in notes
    assert "1 request/s and 4 requests/s: Left out: 98 to 1,203 rows." in notes
    assert {"1 request/s: Of 2 users 1 asked.", "2 requests/s: Of 64 users 31 asked."} <= set(notes)


def test_a_sweep_gathers_the_failures_of_its_points() -> None:
    assert notes_of(sweep_report(Setting(num_requests=40, failing=0.3), rates=(1, 2)))[0].startswith(
        "At 1 and 2 requests/s"
    )


def test_a_comparison_says_which_side_is_at_fault() -> None:
    report = compare_report()
    report = structs.replace(report, b=run_report(lag_ms=8.0))
    assert all(fault.startswith("B: ") for fault in faults_of(report)) and faults_of(report)


@pytest.mark.parametrize(
    ("within", "beyond", "said"),
    [
        (4.0, 4.4, "4 requests/s met the SLO and 4.4 requests/s did not: the limit lies between the two."),
        (2.0, None, "All that was tried met the SLO, up to 2 requests/s; the limit lies above that."),
        (1.0, None, "The SLO was met up to 1 request/s; the limit lies above that."),
        (None, 1.0, "Nothing that was tried met the SLO: not even 1 request/s did."),
        (
            None,
            2.0,
            "Nothing that was tried met the SLO beyond doubt, and 2 requests/s did not: the limit lies below"
            " that.",
        ),
        (None, None, "Nothing that was tried met the SLO beyond doubt."),
    ],
)
def test_the_limit_is_never_said_to_be_known_better_than_it_is(
    within: float | None, beyond: float | None, said: str, small_sweep: SweepReport
) -> None:
    assert (
        limit_words(structs.replace(small_sweep, highest_within_slo=within, lowest_beyond_slo=beyond)) == said
    )


def test_loads_are_counted_in_what_they_are(small_sweep: SweepReport) -> None:
    assert value_words(small_sweep, 1) == "1 request/s"
    users = structs.replace(small_sweep, over="concurrency")
    assert [value_words(users, value) for value in (1, 8)] == ["1 user", "8 users"]
    point = small_sweep.points[0]
    (repeat,) = point.run.repeats
    later = structs.replace(repeat, requests=[structs.replace(row, turn=1) for row in repeat.requests])
    talks = structs.replace(point, run=structs.replace(point.run, repeats=[later]))
    assert value_words(structs.replace(small_sweep, points=[talks]), 2) == "2 conversations/s"


def test_without_an_slo_there_is_no_limit() -> None:
    assert "No SLO was given" in limit_words(sweep_report(Setting(num_requests=40, slo=False), rates=(1,)))


@pytest.fixture(scope="module")
def small_sweep() -> SweepReport:
    return sweep_report(Setting(num_requests=40), rates=(1, 2))
