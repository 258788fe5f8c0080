"""What a report says besides its figures, and what it keeps to itself."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from loadtest.describe import (
    exit_status,
    faults_of_point,
    faults_of_run,
    is_sustained,
    run_notes,
    without_secret_fields,
    without_secrets,
    without_user,
)
from loadtest.results import (
    FORMAT,
    CompareReport,
    Repeat,
    RequestRow,
    RunReport,
    Schedule,
    Server,
    Summary,
    SweepPoint,
    SweepReport,
    Tool,
    UsageCheck,
)

SUMMARY = Summary(
    ttft_ms=None, ttft_from_send_ms=None, itl_ms=None, tpot_ms=None, e2e_ms=None, e2e_from_send_ms=None,
    normalized_ms=None, queue_ms=None,
    duration_s=10.0,
    output_tok_s=100.0,
    total_tok_s=200.0,
    request_rate=10.0,
    goodput=None,
    slo_attainment=None,
    completed=200,
    failed=0,
    left=0,
    unfinished=0,
    failures={},
    tokens_per_piece=1.0,
    exact_token_times=True,
    prompt_tokens=1000,
    completion_tokens=1000,
    cached_tokens=0,
)  # fmt: skip
SCHEDULE = Schedule(2.0, 2.0, None, None, 0, 3, True, [])


def rows(latencies_ms: list[float]) -> list[RequestRow]:
    return [
        RequestRow(index, 0, 5, 5, index * 100.0, index * 100.0, None, index * 100.0 + took, "completed")
        for index, took in enumerate(latencies_ms)
    ]


def report(latencies_ms: list[float] | None = None, **changes: Any) -> RunReport:
    """One without a fault, with what is given in place of its own. Fields of its summary go there."""
    of_summary = {name: changes.pop(name) for name in list(changes) if name in Summary.__struct_fields__}
    summary = replace(SUMMARY, **of_summary)
    repeats = [Repeat("salt", "", summary, SCHEDULE, rows(latencies_ms or [10.0] * 60), []) for _ in range(2)]
    run = RunReport(
        format=FORMAT,
        tool=Tool("0", "3", "", 2, []),
        server=Server("http://here", "m", "tidegate", "1", 2048, True, 1000, True),
        workload={},
        label="",
        slo={},
        warmup_requests=4,
        interrupted=False,
        usage=UsageCheck(10, 10, 10, 10, True, ""),
        summary=summary,
        schedule=SCHEDULE,
        repeats=repeats,
        notes=[],
    )
    return replace(run, **changes)


def notes(run: RunReport, *, salted: bool = True, dropped: int = 0) -> str:
    return "\n".join(run_notes(run, salted=salted, dropped=dropped))


def test_where_there_is_nothing_to_doubt_nothing_is_said() -> None:
    assert notes(report(repeats=report().repeats * 3)) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cached_tokens": 300}, "30.0% of the prompts' tokens"),
        ({"cached_tokens": None}, "does not say how much"),
        ({"completed": 40}, "Of fewer than 100 requests"),
        ({"warmup_requests": 0}, "Nothing was warmed up"),
        ({"server": Server("u", "m", "unknown", "", None, False, 9, True)}, "does not let a client force"),
        ({"server": Server("u", "m", "unknown", "", None, True, 9, False)}, "No tokenizer could be asked"),
    ],
)  # fmt: skip
def test_what_a_reader_must_know_is_said(changes: dict[str, Any], said: str) -> None:
    assert said in notes(report(**changes))


def test_one_repeat_kept_caches_and_dropped_rows_are_said() -> None:
    run = report()
    assert "One run only" in notes(replace(run, repeats=run.repeats[:1]))
    assert "of fewer than 6 none holds 95 %" in notes(replace(run, repeats=run.repeats[:1] * 5))
    assert "--keep-cache" in notes(run, salted=False)
    assert "context window: 12 rows" in notes(run, dropped=12)


def test_requests_that_were_sent_again_are_counted() -> None:
    run = report()
    repeat = run.repeats[0]
    requests = [replace(row, resent=2 * (row.index < 3)) for row in repeat.requests]
    assert ": 3 of these were sent again" in notes(replace(run, repeats=[replace(repeat, requests=requests)]))


def test_a_server_that_falls_behind_is_told_from_one_that_keeps_up() -> None:
    growing = [100.0 + 50 * index for index in range(60)]
    assert "The server fell behind" in notes(report(growing))
    assert "fell behind" not in notes(report([100.0, 900.0, 150.0] * 20))
    assert "fell behind" not in notes(report(growing[:15])), "fifteen requests tell nothing"
    closed = replace(report(growing), schedule=replace(SCHEDULE, asked_rate=None))
    assert "fell behind" not in notes(closed), "users wait for their answers: they ask less"


def test_a_run_that_ends_before_its_answers_shows_no_steady_state() -> None:
    all_at_once = [5000.0 - 50 * index for index in range(60)]
    assert "the run was too short" in notes(report(all_at_once))
    assert "too short" not in notes(report([2000.0] * 60))


def test_turns_that_nobody_could_ask_are_not_taken_for_unanswered_ones() -> None:
    """Half of the conversations fail early: nothing waits, and the run was long enough."""
    asked = rows([80.0] * 40)
    failed = [replace(row, outcome="failed") for row in asked[1::2]]
    unasked = [replace(row, sent_ms=None, ended_ms=None, turn=1) for row in failed for _ in range(3)]
    run = report()
    broken = [replace(run.repeats[0], requests=[*asked[::2], *failed, *unasked])]
    assert "too short" not in notes(replace(run, repeats=broken))
    assert "fell behind" not in notes(replace(run, repeats=broken))


def test_a_load_that_the_server_falls_behind_of_is_not_sustained() -> None:
    assert is_sustained(report())
    assert not is_sustained(report([100.0 + 50 * index for index in range(60)]))
    assert not is_sustained(report([5000.0 - 50 * index for index in range(60)]))


def test_users_who_ran_out_of_requests_are_told() -> None:
    assert "all that there was to ask" in run_notes(report(), salted=True, dropped=0, ran_out=True)[0]


def test_a_trace_whose_answers_get_longer_is_no_server_that_falls_behind() -> None:
    run = report()
    longer = [
        replace(row, output_len=5 * (index + 1), ended_ms=row.intended_ms + 50.0 * (index + 1))
        for index, row in enumerate(rows([0.0] * 60))
    ]
    assert "fell behind" not in notes(replace(run, repeats=[replace(run.repeats[0], requests=longer)] * 2))


# ---- secrets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "s3cret", "--rate", "2"], ["--api-key", "***", "--rate", "2"]),
        (["--api-key=s3cret"], ["--api-key=***"]),
        (["--api-key-b", "s3cret"], ["--api-key-b", "***"]),
        (["--header", "Authorization: Bearer s3cret"], ["--header", "Authorization: ***"]),
        (["--header=X-Key: s3cret"], ["--header=X-Key: ***"]),
        (["--base-url", "https://me:s3cret@host:1/v1"], ["--base-url", "https://host:1/v1"]),
        (["--", "env", "HF_TOKEN=s3cret", "serve"], ["--", "env", "HF_TOKEN=***", "serve"]),
        (["--", "serve", "--admin-key", "s3cret"], ["--", "serve", "--admin-key", "***"]),
        (["--max-tokens", "512", "--tokenizer", "t"], ["--max-tokens", "512", "--tokenizer", "t"]),
        (["--slo", "ttft=1s", "a=b"], ["--slo", "ttft=1s", "a=b"]),
        (["--api_key", "s3cret", "-k", "s3cret"], ["--api_key", "***", "-k", "***"]),
        (["--extra-body={\"a\": {\"token\":7}}"], ["--extra-body={\"a\": {\"token\":\"***\"}}"]),
    ],
)  # fmt: skip
def test_secrets_are_hidden_and_nothing_else(given: list[str], shown: list[str]) -> None:
    assert without_secrets(given) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("exec serve --api-key s3cret -n 1", "exec serve --api-key *** -n 1"),
        ("X=1 HF_TOKEN='s3 cret' serve", "X=1 HF_TOKEN=*** serve"),
        ("serve -H 'Authorization: Bearer s3cret' x", "serve -H 'Authorization: ***' x"),
        ("serve --to http://me:s3cret@host/", "serve --to http://host/"),
        ("serve --max-tokens 5 --keys-file f", "serve --max-tokens 5 --keys-file f"),
        ('{"api_key": "s3\\"cret", "n": 1}', '{"api_key": "***", "n": 1}'),
    ],
)
def test_secrets_within_a_word_are_hidden(given: str, shown: str) -> None:
    assert without_secrets(["sh", "-c", given, "x"]) == ["sh", "-c", shown, "x"]


def test_fields_of_a_body_that_are_secret_are_hidden() -> None:
    assert without_secret_fields('{"apiKey": "x", "max_tokens": 5}') == '{"apiKey": "***", "max_tokens": 5}'
    assert without_secret_fields('{"keys": ["x", "y"], "n": 1}') == '{"keys": "***", "n": 1}'
    assert without_secret_fields('{"secrets": {"a": "x"}, "n": 1}') == '{"secrets": "***", "n": 1}'


def test_the_user_of_an_address_is_left_out() -> None:
    assert without_user("http://a:b@[::1]:8/v1") == "http://[::1]:8/v1"
    assert without_user("me@host") == "me@host"


# ---- exit codes ------------------------------------------------------------------------------------

UNEQUAL = report(usage=UsageCheck(10, 13, 10, 10, False, ""))
EMPTY = report(completed=0, failed=5, usage=UsageCheck(0, 0, 0, 0, False, "There is nothing to compare."))
FAILING = report(completed=99, failed=101)
_CAPPED = replace(
    SCHEDULE, achieved_rate=1.5, capped=9, on_schedule=False, faults=["1.5 a second were sent: the cap."]
)


def scheduled(schedule: Schedule) -> RunReport:
    run = report(schedule=schedule)
    return replace(run, repeats=[replace(repeat, schedule=schedule) for repeat in run.repeats])


CAPPED = scheduled(_CAPPED)
OFF = scheduled(replace(SCHEDULE, on_schedule=False, faults=["The tool was late."]))


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (report(), 0),
        (OFF, 3),
        (UNEQUAL, 3),
        (EMPTY, 1),
        (CAPPED, 3),
        (FAILING, 3),
        (replace(OFF, interrupted=True), 130),
    ],
)
def test_exit_status_of_a_run(run: RunReport, status: int) -> None:
    assert exit_status(run) == status


GONE = "Of 3 repeats only 2 could be made."


def test_exit_status_of_several_runs() -> None:
    def sweep(*runs: RunReport) -> SweepReport:
        points = [SweepPoint(1.0, None, run) for run in runs]
        return SweepReport(FORMAT, "rate", points, None, "", None, None, 0.9, [])

    def both(a: RunReport, b: RunReport) -> CompareReport:
        return CompareReport(FORMAT, a, b, [], [], "", [])

    good = report()
    assert [exit_status(sweep(good, good)), exit_status(sweep(good, OFF))] == [0, 3]
    assert exit_status(sweep(EMPTY, EMPTY)) == 1
    assert exit_status(sweep(good, EMPTY)) == 0, "an overloaded server may answer nothing"
    assert [exit_status(sweep(good, FAILING)), exit_status(both(good, FAILING))] == [0, 3]
    assert exit_status(sweep(good, CAPPED)) == 0, "or keep requests waiting for the cap"
    assert [exit_status(both(good, good)), exit_status(both(good, EMPTY))] == [0, 1]
    ended = (replace(good, cut_short=GONE), replace(sweep(good), cut_short=GONE))
    assert [exit_status(found) for found in (*ended, replace(both(good, good), cut_short=GONE))] == [3, 3, 3]


def test_what_the_server_cannot_bear_is_a_fault_of_a_run_and_a_finding_of_a_sweep() -> None:
    assert [faults_of_run(CAPPED), faults_of_point(CAPPED)] == [_CAPPED.faults, []]
    late = replace(_CAPPED, faults=[*_CAPPED.faults, "Requests were sent late."])
    assert faults_of_point(scheduled(late)) == SCHEDULE.faults + late.faults
    assert faults_of_run(EMPTY) == ["No request completed, so there are no latencies."]
    assert faults_of_point(EMPTY) == []
    assert faults_of_point(UNEQUAL) == faults_of_run(UNEQUAL) != []
