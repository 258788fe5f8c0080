"""What a run found, as its JSON has it. The shape is public: scripts and dashboards read it
(docs/loadtest.md).

Names end in their unit. A figure that could not be had is null, never 0. Latencies count from the intended
send time; those whose name says ``from_send`` from the actual one. Only completed requests have latencies.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FORMAT = 1
RATE_TOLERANCE = 0.01


class Interval(Struct, frozen=True):
    """95 % confidence, by bootstrap; over fewer than six repeats as near to it as they allow."""

    low: float
    high: float


class Distribution(Struct, frozen=True):
    """Percentiles interpolate linearly between the two nearest samples."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    intervals: dict[str, Interval] = {}  # of mean, p50, p90, p95 and p99


class Steady(Struct, frozen=True):
    """Rates while the load was whole, so without a run's beginning and end; a request counts by its pieces.

    Of an open load that is from the first answer's end, since before it more and more requests run, to the
    last begin of a conversation; of a closed one until the first user ran out of work. Of repeats together
    times are means.
    """

    from_ms: float
    to_ms: float
    output_tok_s: float | None  # null where the server tells no usage
    request_rate: float


class Summary(Struct, frozen=True):
    """Of one run, or of its repeats together. What slow readers asked for is in no latency and no SLO."""

    ttft_ms: Distribution | None
    ttft_from_send_ms: Distribution | None
    itl_ms: Distribution | None  # between pieces of one choice, as they came
    tpot_ms: Distribution | None  # of one request: (last piece - first) / (tokens of a choice - 1)
    e2e_ms: Distribution | None
    e2e_from_send_ms: Distribution | None
    normalized_ms: Distribution | None  # e2e / tokens of a choice; the PagedAttention paper's s/token, in ms
    queue_ms: Distribution | None  # from intended to sent: what the client's own cap cost
    duration_s: float  # from the first intended time to the last end
    output_tok_s: float | None  # of completed requests, over all of that time; null as in Steady
    total_tok_s: float | None
    request_rate: float  # completed a second
    goodput: float | None  # completed within the SLO a second; null without one
    slo_attainment: float | None  # share of all but those left on purpose or read slowly; a failure is a miss
    completed: int
    failed: int
    left: int  # by the client, on purpose
    unfinished: int
    failures: dict[str, int]  # by reason
    tokens_per_piece: float | None
    exact_token_times: bool  # each piece was one token
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    slow: int = 0  # of all these, those whose client read slowly
    together_share: float | None = None  # of the gaps between pieces, those in which no time passed
    steady: Steady | None = None  # null where there was no such time

    @property
    def asked(self) -> int:
        """Requests that were to be sent."""
        return self.completed + self.failed + self.left + self.unfinished

    @property
    def has_mostly_failed(self) -> bool:
        """Then what completed says little of what was asked."""
        return 2 * self.failed > self.asked

    @property
    def sustained_tok_s(self) -> float:
        """What the server gives under this load: without its beginning and end, where that is known.
        To draw and to compare loads by: 0 where nothing was counted.
        """
        return (self.output_tok_s if self.steady is None else self.steady.output_tok_s) or 0.0


class Schedule(Struct, frozen=True):
    """Whether the tool did as it was asked, and the load was there. Rates are conversations a second."""

    asked_rate: float | None  # null under a closed load
    achieved_rate: float | None
    lag_ms: Distribution | None  # of sends: actual minus intended, less waiting for the cap
    loop_lag_ms: Distribution | None  # of the event loop, sampled all the time
    capped: int  # requests that waited because max_concurrency was reached
    peak_concurrency: int
    on_schedule: bool
    faults: list[str]  # plain sentences; empty when on_schedule
    notes: list[str] = []  # what to bear in mind of the load
    stalled: int = 0  # requests that were under way while the tool stood still for a while
    later_turns: int = 0  # sent, that had a time of their own
    slip_ms: Distribution | None = None  # of those of them that came after it: by how much
    mean_users: float | None = None  # of a closed load: those that had work

    @property
    def fell_short(self) -> bool:
        """Whether requests left at less than the rate that was asked, where one was."""
        asked, achieved = self.asked_rate, self.achieved_rate
        return asked is not None and achieved is not None and achieved < asked * (1 - RATE_TOLERANCE)


class UsageCheck(Struct, frozen=True):
    """Whether the server counted the tokens that were planned."""

    planned_prompt_tokens: int
    counted_prompt_tokens: int
    planned_completion_tokens: int
    counted_completion_tokens: int
    within: bool  # 2 % in prompts, and in completions where lengths are forced
    note: str


class RequestRow(Struct, frozen=True, omit_defaults=True):
    """One request. Times are ms from the start of its repeat."""

    index: int
    turn: int
    input_len: int
    output_len: int
    intended_ms: float
    sent_ms: float | None
    first_ms: float | None
    ended_ms: float | None
    outcome: str
    reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    piece_ms: list[list[float]] = []  # of each choice
    capped_ms: float | None = None  # of the time until it was sent: waiting for max_concurrency, if it did
    n: int = 1  # answers asked for
    pause_ms: float | None = None  # of a slow reader, after each piece
    leave_after: int | None = None  # tokens after which its client was to leave
    finish_reasons: list[str] = []  # of each choice, as far as told
    resent: int = 0  # times that it was put on another connection, the server being about to close its own


class Series(Struct, frozen=True):
    """One of the server's own measures over time: a gauge as it is, a counter as its growth."""

    name: str  # ours, such as "running", "kv_blocks host" or "bytes swap_out"
    source: str  # the sample's name and labels on the server's page
    unit: Literal["", "bytes", "tokens", "blocks", "requests", "share"]
    is_counter: bool
    at_ms: list[float]
    values: list[float]


class Repeat(Struct, frozen=True):
    salt: str  # seeds the words of all prompts
    started_at: str  # ISO 8601, UTC
    summary: Summary
    schedule: Schedule
    requests: list[RequestRow]
    server: list[Series]
    seed: int = 0  # of its lengths, times and who leaves: with it as --seed, a single repeat is this one
    time_scale: float | None = None  # by which a trace's times were multiplied, where these are the schedule


class Server(Struct, frozen=True):
    base_url: str
    model: str
    kind: str  # tidegate, vllm, llama.cpp, or unknown
    version: str
    max_model_len: int | None
    forces_lengths: bool
    token_words: int  # words of the vocabulary that prompts are made of
    words_verified: bool  # by the server's own tokenizer, or only by what usage said


class Tool(Struct, frozen=True):
    version: str
    python: str
    platform: str
    processors: int
    arguments: list[str]  # to run it again; secrets left out


class RunReport(Struct, frozen=True, tag_field="kind", tag="run"):
    format: int
    tool: Tool
    server: Server
    workload: dict[str, str | int | float | bool | None]  # every setting, defaults too
    label: str  # one line: what was asked of the server
    slo: dict[str, float]  # limits in ms by measure; empty without one
    warmup_requests: int  # that completed before each repeat, at least; not in any figure
    interrupted: bool
    usage: UsageCheck
    summary: Summary
    schedule: Schedule
    repeats: list[Repeat]
    notes: list[str]  # what a reader must know before he believes a figure
    cut_short: str = ""  # why there is less of it than was asked for, if the server was gone


class SweepPoint(Struct, frozen=True):
    value: float  # the rate, or the number of users
    meets_slo: bool | None  # null without an SLO, and where it is not known
    run: RunReport
    sustained: bool = True  # the server bore it; else the SLO counts as missed
    attainment: Interval | None = None  # of ``summary.slo_attainment``, after Wilson


class SweepReport(Struct, frozen=True, tag_field="kind", tag="sweep"):
    format: int
    over: Literal["rate", "concurrency"]
    points: list[SweepPoint]  # by value
    knee: float | None  # a value of a point
    knee_note: str
    highest_within_slo: float | None  # of those that met it beyond doubt
    lowest_beyond_slo: float | None  # that missed it beyond doubt: the true limit lies between the two
    attainment: float  # share of requests that had to meet the SLO
    notes: list[str]
    cut_short: str = ""


class Ratio(Struct, frozen=True):
    measure: str  # such as "ttft_ms p50" or "output_tok_s"
    a: float
    b: float
    ratio: float  # B / A
    interval: Interval
    verdict: str  # a plain sentence
    lower_is_better: bool
    difference: Literal["better", "worse", "perhaps", "none"] = "none"  # of B, beyond chance; perhaps not


class CompareReport(Struct, frozen=True, tag_field="kind", tag="compare"):
    format: int
    a: RunReport
    b: RunReport
    order: list[str]  # "A" and "B" as they were run
    ratios: list[Ratio]
    verdict: str
    notes: list[str]
    cut_short: str = ""


Report = RunReport | SweepReport | CompareReport
