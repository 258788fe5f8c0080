"""Makes figures of timelines. Pure.

Latencies are of completed requests only; what failed is counted apart, by reason, and missed its SLO. What
slow readers asked for is counted, and is in no latency and no SLO. Rates are over the whole of a run, from
the first intended time to the last end; beside them are those of the time in which the load was whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from loadtest.latency import MEASURES, has_latency, latency, samples_ms
from loadtest.measured import Measured
from loadtest.results import Distribution, RequestRow, Summary, UsageCheck
from loadtest.slo import Slo
from loadtest.stats import distribution_of_runs
from loadtest.steady import steady
from loadtest.timeline import Outcome, Timeline, Usage

USAGE_TOLERANCE = 0.02
_Counts = Sequence[tuple[int, int]]
"""Of each request, tokens as planned and as counted."""
_TOGETHER_S = 1e-4  # between two pieces: a server takes longer to make one, and a connection to carry it


def summarize(runs: Sequence[Measured], slo: Slo | None) -> Summary:
    """Of one run, or of repeats together."""
    timelines = [timeline for run in runs for timeline in run.timelines]
    completed = [timeline for timeline in timelines if timeline.outcome is Outcome.COMPLETED]
    timed = [timeline for timeline in completed if has_latency(timeline)]
    usages = [timeline.usage for timeline in completed if timeline.usage is not None]
    outcomes = Counter(timeline.outcome for timeline in timelines)
    duration_s = sum(map(_duration_s, runs))
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    is_counted = bool(usages) or not completed
    num_good = None if slo is None else sum(map(slo.met, timed))
    return Summary(
        **_latencies(runs),
        duration_s=duration_s,
        output_tok_s=_rate(completion_tokens, duration_s) if is_counted else None,
        total_tok_s=_rate(prompt_tokens + completion_tokens, duration_s) if is_counted else None,
        request_rate=_rate(len(completed), duration_s),
        goodput=None if num_good is None else _rate(num_good, duration_s),
        slo_attainment=_share(num_good, sum(map(_can_meet, timelines))),
        completed=len(completed),
        failed=outcomes[Outcome.FAILED],
        left=outcomes[Outcome.LEFT],
        unfinished=outcomes[Outcome.UNFINISHED],
        failures=_failures(timelines),
        tokens_per_piece=_share(completion_tokens if is_counted else None, sum(map(_num_pieces, completed))),
        exact_token_times=bool(completed) and all(map(_is_a_token_a_piece, completed)),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=_cached_tokens(usages),
        slow=sum(timeline.is_slow for timeline in timelines),
        together_share=_together_share(timed),
        steady=steady(runs),
    )


def rows(run: Measured) -> list[RequestRow]:
    """Each request of a run, to the microsecond."""
    return [_row(timeline) for timeline in run.timelines]


def usage_check(runs: Sequence[Measured], forced: bool) -> UsageCheck:
    """Whether the server counted what was planned. ``forced``: it had to answer in the lengths asked for.
    Else these were the most that an answer could have, and what is above them is off.

    Requests are compared one by one: what one has too many does not make up for what another lacks.
    """
    pairs = [
        (timeline, timeline.usage)
        for run in runs
        for timeline in run.timelines
        if timeline.outcome is Outcome.COMPLETED and timeline.usage is not None
    ]
    prompts = [(timeline.expected_prompt_tokens, usage.prompt_tokens) for timeline, usage in pairs]
    completions = [
        (timeline.planned.output_len * timeline.planned.n, usage.completion_tokens)
        for timeline, usage in pairs
    ]
    limited = completions if forced else [(most, max(most, counted)) for most, counted in completions]
    return UsageCheck(
        planned_prompt_tokens=sum(planned for planned, _ in prompts),
        counted_prompt_tokens=sum(counted for _, counted in prompts),
        planned_completion_tokens=sum(planned for planned, _ in completions),
        counted_completion_tokens=sum(counted for _, counted in completions),
        within=bool(pairs) and _off_by(prompts) <= USAGE_TOLERANCE and _off_by(limited) <= USAGE_TOLERANCE,
        note=_usage_note(prompts, limited, forced),
    )


def _usage_note(prompts: _Counts, completions: _Counts, forced: bool) -> str:
    if not prompts:
        return "No request completed and told its usage: there is nothing to compare."
    note = f"Prompts are off by {_off_by(prompts):.2%}, request by request"
    if forced:
        return f"{note}, answers by {_off_by(completions):.2%}."
    if too_long := _off_by(completions):
        return f"{note}. Answers are longer than was allowed, by {too_long:.2%}."
    return f"{note}. The lengths of answers are not forced: the server ended them when it liked."


def _off_by(counts: _Counts) -> float:
    """Share of the planned tokens, either way."""
    planned = sum(planned for planned, _ in counts)
    return sum(abs(counted - planned) for planned, counted in counts) / planned if planned else 0.0


def _latencies(runs: Sequence[Measured]) -> dict[str, Distribution | None]:
    had = [[latency(timeline) for timeline in run.timelines if has_latency(timeline)] for run in runs]
    return {
        measure: distribution_of_runs([[samples_ms(one, measure) for one in run] for run in had])
        for measure in MEASURES
    }


def _can_meet(timeline: Timeline) -> bool:
    """Whether the SLO is about it: not if its client left on purpose, or read slowly."""
    return timeline.outcome is not Outcome.LEFT and not timeline.is_slow


def _duration_s(run: Measured) -> float:
    ends = [timeline.ended_at for timeline in run.timelines if timeline.ended_at is not None]
    return max(ends) - min(timeline.intended_at for timeline in run.timelines) if ends else 0.0


def _failures(timelines: Iterable[Timeline]) -> dict[str, int]:
    reasons = Counter(timeline.reason for timeline in timelines if timeline.outcome is Outcome.FAILED)
    return dict(reasons.most_common())


def _num_pieces(timeline: Timeline) -> int:
    return sum(map(len, timeline.piece_times))


def _is_a_token_a_piece(timeline: Timeline) -> bool:
    """As the server tells; where it does not, if there are as many pieces as tokens."""
    if timeline.piece_tokens is not None:
        return all(tokens == 1 for counts in timeline.piece_tokens for tokens in counts)
    return timeline.usage is not None and timeline.usage.completion_tokens == _num_pieces(timeline)


def _together_share(timed: Iterable[Timeline]) -> float | None:
    gaps_s = [gap_s for timeline in timed for gap_s in latency(timeline).gaps_s]
    return _share(sum(gap_s < _TOGETHER_S for gap_s in gaps_s), len(gaps_s))


def _cached_tokens(usages: Iterable[Usage]) -> int | None:
    told = [usage.cached_tokens for usage in usages if usage.cached_tokens is not None]
    return sum(told) if told else None


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s else 0.0


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


def _row(timeline: Timeline) -> RequestRow:
    planned, usage = timeline.planned, timeline.usage
    return RequestRow(
        index=planned.index,
        turn=timeline.turn,
        input_len=planned.input_len,
        output_len=planned.output_len,
        intended_ms=_at_ms(timeline.intended_at),
        sent_ms=None if timeline.sent_at is None else _at_ms(timeline.sent_at),
        first_ms=None if timeline.first_at is None else _at_ms(timeline.first_at),
        ended_ms=None if timeline.ended_at is None else _at_ms(timeline.ended_at),
        outcome=timeline.outcome.value,
        reason=timeline.reason,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        piece_ms=[[_at_ms(at) for at in times] for times in timeline.piece_times],
        capped_ms=_at_ms(timeline.capped_s) or None,
        n=planned.n,
        pause_ms=_at_ms(planned.reading.pause_s) or None,
        leave_after=None if math.isinf(planned.reading.leave_after) else int(planned.reading.leave_after),
        finish_reasons=timeline.finish_reasons,
        resent=timeline.resent,
    )


def _at_ms(at_s: float) -> float:
    return round(at_s * 1e3, 3)
