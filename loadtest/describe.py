"""What a reader of a report must know besides its figures: what to doubt, and what it was run with. Pure."""

from __future__ import annotations

import bisect
import math
import re
import statistics
from collections.abc import Iterator, Sequence

from loadtest.intervals import FEWEST
from loadtest.latency import latency_of_row
from loadtest.results import CompareReport, Report, RequestRow, RunReport, Schedule, SweepReport
from loadtest.spec import Arrival, WorkloadSpec

EXIT_NOTHING_DONE = 1
EXIT_USER_ERROR = 2
EXIT_NOT_TO_BE_TRUSTED = 3
EXIT_INTERRUPTED = 130
HIDDEN = "***"
_FLAG = r"(?:-k|--?(?:[a-z0-9_-]*[_-])?(?:key|keys|token|secret|password)(?:[_-][ab])?)"
_VARIABLE = r"[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*"
_SECRET_FLAG, _SECRET_VARIABLE = re.compile(_FLAG), re.compile(_VARIABLE)
_HEADER_FLAGS = ("--header", "--header-b", "-H")
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"']+)"""
_SECRETS_WITHIN = (  # of a word that is a whole command, such as that of sh -c
    re.compile(rf"((?:^|(?<=[\s\"';&|(])){_FLAG}(?:=|\s+)){_VALUE}"),
    re.compile(rf"(\b{_VARIABLE}=){_VALUE}"),
    re.compile(
        r"(\b(?:[\w-]*authorization|[\w-]*key|[\w-]*token)\s*:\s*)(?:[a-z]+ )?[^\s\"']+", re.IGNORECASE
    ),
)
_SECRET_FIELD = re.compile(
    r"""("[^"]*(?:keys?|token|secrets?|passwords?|authorization)"\s*:\s*)"""
    r"""("(?:[^"\\]|\\.)*"|\[[^\]]*\]|\{[^}]*\}|[^\s",}\]]+)""",
    re.IGNORECASE,
)
_USER = re.compile(r"(?<=://)[^/?#\s@]*@")
_FEW_FOR_P99 = 100
_SLOWER = 1.2  # latency of the last third of an open load by that of the second, if it grows
_FEW_FOR_THIRDS = 10
_MANY_CACHED = 0.01  # share of the prompts' tokens


def run_notes(report: RunReport, *, salted: bool, dropped: int, ran_out: bool = False) -> list[str]:
    """Plain sentences, the gravest first, about what no other field of the report says.

    ``dropped``: rows of a trace that were left out in each repeat. ``ran_out``: of requests, before the time
    of a closed load was over.
    """
    return [
        *(["The users had asked all that there was to ask before their time was over."] if ran_out else []),
        *_notes_of_backlog(report),
        *_notes_of_tokens(report),
        *_notes_of_cache(report, salted),
        *_notes_of_samples(report),
        *_notes_of_connections(report),
        *(
            [f"Left out, since they do not fit the server's context window: {dropped} rows."]
            if dropped
            else []
        ),
    ]


def _notes_of_backlog(report: RunReport) -> Iterator[str]:
    """A rate that the server cannot bear has no latency of its own: it grows as long as one measures."""
    repeats = [_were_due(repeat.requests) for repeat in report.repeats]
    if report.schedule.asked_rate is None:
        return
    if any(map(_ended_before_its_answers, repeats)):
        yield (
            "When the last request was due, most had not ended: the run was too short to show a steady state,"
            " if there is one at this rate. Latencies depend on how long it was."
        )
    elif _fell_behind(repeats):
        yield (
            "The server fell behind: the longer requests came, the more of them it had, the slower it was. It"
            " may have no steady state at this rate; then latencies depend on how long the run is."
        )


def _were_due(rows: Sequence[RequestRow]) -> list[RequestRow]:
    """Without turns that nobody could ask since the conversation was over: they never were under way."""
    return [row for row in rows if row.sent_ms is not None or row.outcome == "unfinished"]


def is_sustained(report: RunReport) -> bool:
    """Whether the server bore the load: its queue did not grow for as long as requests came."""
    return not any(True for _ in _notes_of_backlog(report))


def _ended_before_its_answers(rows: Sequence[RequestRow]) -> bool:
    in_order = sorted(rows, key=lambda row: row.intended_ms)
    return len(rows) >= _FEW_FOR_THIRDS and _numbers_in_flight(in_order)[-1] > len(rows) / 2


def _fell_behind(repeats: Sequence[Sequence[RequestRow]]) -> bool:
    """Whether the last third of the requests met more others than the second did, and was slower.

    By more than the root, which is how a steady number differs from itself. At 80 % of what a server bears
    one run of twelve looks like that, at 90 % one of six; at 130 % nine of ten do that have 200 requests.
    """
    second, last = list[RequestRow](), list[RequestRow]()
    met = [list[int](), list[int]()]
    for rows in repeats:
        in_order = sorted(rows, key=lambda row: row.intended_ms)
        in_it = _numbers_in_flight(in_order)
        third = len(in_order) // 3
        second += in_order[third : 2 * third]
        last += in_order[2 * third :]
        met[0] += in_it[third : 2 * third]
        met[1] += in_it[2 * third :]
    if len(second) < _FEW_FOR_THIRDS or not (times := (_median_time(second), _median_time(last)))[0]:
        return False
    before, after = map(statistics.fmean, met)
    return after > before + math.sqrt(before) and times[1] > times[0] * _SLOWER


def _numbers_in_flight(rows: Sequence[RequestRow]) -> list[int]:
    """For each request, by intended time: how many were due by then and had not ended."""
    ends = sorted(row.ended_ms for row in rows if row.ended_ms is not None)
    return [due - bisect.bisect(ends, row.intended_ms) for due, row in enumerate(rows, start=1)]


def _median_time(rows: Sequence[RequestRow]) -> float:
    """Latency by tokens of the answer, which differ in a trace; 0 where nothing has one."""
    took = [had.e2e_s / row.output_len for row in rows if (had := latency_of_row(row)) is not None]
    return statistics.median(took) if took else 0.0


def _notes_of_tokens(report: RunReport) -> Iterator[str]:
    server = report.server
    if not server.forces_lengths:
        yield (
            "The server does not let a client force the length of an answer: answers are as long as the model"
            " made them, at most what was planned."
        )
    if not server.words_verified:
        yield "No tokenizer could be asked whether the prompts' words are one token each; usage says that."


def _notes_of_cache(report: RunReport, salted: bool) -> Iterator[str]:
    summary = report.summary
    if not salted:
        yield (
            "--keep-cache: prompts, lengths and times are those of earlier runs and repeats with this seed."
            " The server may know them, and intervals do not know what others would bring."
        )
    if summary.cached_tokens is None:
        yield "The server does not say how much of the prompts it had in its cache."
    elif summary.prompt_tokens and summary.cached_tokens > _MANY_CACHED * summary.prompt_tokens:
        share = summary.cached_tokens / summary.prompt_tokens
        yield f"{share:.1%} of the prompts' tokens came from the server's cache."


def _notes_of_samples(report: RunReport) -> Iterator[str]:
    summary = report.summary
    if 0 < summary.completed < _FEW_FOR_P99:
        yield f"Of fewer than {_FEW_FOR_P99} requests a p99 is hardly more than their maximum."
    if len(report.repeats) == 1:
        yield "One run only: its intervals know how requests differ, not how one run differs from the next."
    elif len(report.repeats) < FEWEST:
        yield (
            f"Intervals are of {len(report.repeats)} repeats: they are as wide as these allow, and of fewer"
            f" than {FEWEST} none holds 95 %."
        )
    if not report.warmup_requests:
        yield "Nothing was warmed up: what a server does once, for its first requests, is in the figures."


def _notes_of_connections(report: RunReport) -> Iterator[str]:
    resent = sum(row.resent > 0 for repeat in report.repeats for row in repeat.requests)
    if resent:
        yield (
            f"The server closed connections as requests were put on them: {resent} of these were sent again,"
            " on others. What that took is in their latencies."
        )


def load_label(spec: WorkloadSpec, rate: float | None, endpoint: str, transport: str) -> str:
    """One line: what is asked, of whom and how fast."""
    asked = spec.as_json()
    arrival = spec.arrival_at(rate)
    if arrival is Arrival.CLOSED:
        pace = f"{spec.max_concurrency} user{'s' if spec.max_concurrency != 1 else ''}"
    elif rate is None:
        pace = f"times of {asked['trace']} × {spec.trace_scale:g}"
    else:
        to = "" if spec.ramp_to is None else f" to {spec.ramp_to:g}"
        pace = f"{rate:g}{to} a second, {arrival.value}"
    lengths = f"{asked['input_len']} → {asked['output_len']} tokens"
    if asked["trace"] is not None and "trace" in (asked["input_len"], asked["output_len"]):
        lengths = (
            f"lengths of {asked['trace']}"
            if asked["input_len"] == asked["output_len"]
            else f"{lengths} ({asked['trace']})"
        )
    more = [f"{spec.turns} turns"] * (spec.turns != "1") + [f"{spec.n} answers each"] * (spec.n > 1)
    over = {"sse": "SSE", "ws": "WebSocket"}[transport]
    return "; ".join([pace, lengths, *more, f"{endpoint} over {over}"])


# ---- what it was run with --------------------------------------------------------------------------


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line with keys, tokens, passwords and values of headers hidden, also those of a server, of
    a command within a word, and of JSON.
    """
    shown, before = list[str](), ""
    for word in arguments:
        flag, is_assigned, value = word.partition("=")
        if before in _HEADER_FLAGS:
            shown.append(_header(word))
        elif _SECRET_FLAG.fullmatch(before):
            shown.append(HIDDEN)
        elif is_assigned and flag in _HEADER_FLAGS:
            shown.append(f"{flag}={_header(value)}")
        elif is_assigned and (_SECRET_FLAG.fullmatch(flag) or _SECRET_VARIABLE.fullmatch(flag)):
            shown.append(f"{flag}={HIDDEN}")
        else:
            shown.append(without_secret_fields(without_user(_without_secrets_within(word))))
        before = "" if is_assigned else word
    return shown


def without_secret_fields(text: str) -> str:
    """JSON without the values of keys, tokens and passwords, or a text with such JSON in it."""
    return _SECRET_FIELD.sub(rf'\1"{HIDDEN}"', text)


def without_user(text: str) -> str:
    """A URL, or a text with one in it, without user and password; anything else as it is."""
    return _USER.sub("", text)


def _without_secrets_within(word: str) -> str:
    if not any(map(str.isspace, word)) or word.startswith("{"):
        return word
    for secret in _SECRETS_WITHIN:
        word = secret.sub(rf"\1{HIDDEN}", word)
    return word


def _header(text: str) -> str:
    return f"{text.partition(':')[0]}: {HIDDEN}"


# ---- what came of it -------------------------------------------------------------------------------


def faults_of_run(run: RunReport) -> list[str]:
    """Why its figures are not to be believed; empty when they may be."""
    faults = _faults_of_measuring(run)
    if not run.summary.completed:
        faults.append("No request completed, so there are no latencies.")
    elif run.summary.has_mostly_failed:
        faults.append("More than half of the requests failed: the figures are of the few that did not.")
    return faults


def faults_of_point(run: RunReport) -> list[str]:
    """Why a load of a sweep was not what was asked. That the server could not bear it is a finding."""
    if not run.summary.completed or all(map(_is_held_by_its_cap, _schedules(run))):
        return _faults_of_usage(run)
    return _faults_of_measuring(run)


def _faults_of_measuring(run: RunReport) -> list[str]:
    faults = [*_of(run.cut_short), *run.schedule.faults, *_faults_of_usage(run)]
    if not run.schedule.on_schedule and not run.schedule.faults:
        faults.append("The tool did not keep to its schedule.")
    return faults


def faults_of_all(report: SweepReport | CompareReport) -> list[str]:
    """Of what is beyond any single run."""
    return _of(report.cut_short)


def _of(sentence: str) -> list[str]:
    return [sentence] if sentence else []


def _schedules(run: RunReport) -> list[Schedule]:
    return [repeat.schedule for repeat in run.repeats] or [run.schedule]


def _is_held_by_its_cap(found: Schedule) -> bool:
    """Whether nothing but ``max_concurrency`` kept requests from being sent when they were to be."""
    if found.on_schedule:
        return True
    return found.fell_short and found.capped > 0 and len(found.faults) == 1


def _faults_of_usage(run: RunReport) -> list[str]:
    if run.usage.within or not run.summary.completed:
        return []
    if not run.usage.planned_prompt_tokens:
        return ["The server told no usage, so that nobody knows how many tokens it read and wrote."]
    return [f"The server counted other tokens than were planned. {run.usage.note}".strip()]


def exit_status(report: Report) -> int:
    runs = _runs(report)
    if any(run.interrupted for run in runs):
        return EXIT_INTERRUPTED
    done = [run.summary.completed > 0 for run in runs]
    if not (all(done) if isinstance(report, CompareReport) else any(done)):
        return EXIT_NOTHING_DONE
    if not isinstance(report, RunReport) and faults_of_all(report):
        return EXIT_NOT_TO_BE_TRUSTED
    faults = faults_of_point if isinstance(report, SweepReport) else faults_of_run
    return EXIT_NOT_TO_BE_TRUSTED if any(map(faults, runs)) else 0


def _runs(report: Report) -> list[RunReport]:
    match report:
        case SweepReport():
            return [point.run for point in report.points]
        case CompareReport():
            return [report.a, report.b]
        case RunReport():
            return [report]
