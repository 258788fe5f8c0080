"""Workloads: from settings to the plan of a repeat."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import mean_rate
from loadtest.drafts import Room
from loadtest.plan import Load, Plan, PlannedRequest
from loadtest.prompts import TemplateCost, Words
from loadtest.spec import Arrival, WorkloadError, WorkloadSpec, of_repeat
from loadtest.traces import Trace, parse_trace, read_trace
from loadtest.workload import make_plan, warmup_plan

WORDS = Words(tuple(f"w{number}" for number in range(997)), verified=True)
COST = TemplateCost(first=10, later=7)


def planned(
    spec: WorkloadSpec, rate: float | None = None, *, salt: str = "salt", window: int | None = None
) -> Plan:
    return make_plan(spec, rate=rate, salt=salt, words=WORDS, room=Room(COST, window))


def warmed_up(spec: WorkloadSpec, num_requests: int, window: int | None = None) -> Plan:
    return warmup_plan(spec, num_requests=num_requests, salt="salt", words=WORDS, room=Room(COST, window))


def starts(plan: Plan) -> list[float]:
    found = [conversation.turns[0].at_s for conversation in plan.conversations]
    assert None not in found
    return [at_s for at_s in found if at_s is not None]


def trace(*rows: tuple[float, int, int] | tuple[float, int, int, str]) -> Trace:
    lines = ["arrival_ms,input_length,output_length,session"]
    lines += [",".join(map(str, row)) + "," * (4 - len(row)) for row in rows]
    return parse_trace("\n".join(lines).encode(), "mine")


def untimed(*pairs: tuple[int, int]) -> Trace:
    lines = ["input_length,output_length", *(f"{prompt},{answer}" for prompt, answer in pairs)]
    return parse_trace("\n".join(lines).encode(), "pairs")


def lengths(plan: Plan) -> list[tuple[int, int]]:
    return [(request.input_len, request.output_len) for request in plan.requests]


def words_of(request: PlannedRequest) -> list[str]:
    return request.text.split(" ")


# ---- any plan --------------------------------------------------------------------------------------


@given(
    spec=st.builds(
        WorkloadSpec,
        input_len=st.sampled_from(["20", "uniform:11:60", "normal:30:9", "lognormal:30:0.4"]),
        output_len=st.sampled_from(["1", "uniform:1:40"]),
        later_input_len=st.sampled_from([None, "uniform:8:20"]),
        num_requests=st.integers(1, 40),
        arrival=st.sampled_from([Arrival.POISSON, Arrival.CONSTANT]),
        ramp_to=st.sampled_from([None, 5.0]),
        prefix_len=st.just(16),
        num_prefixes=st.just(3),
        turns=st.sampled_from(["1", "3", "uniform:1:4"]),
        think_s=st.sampled_from(["0", "uniform:1:2"]),
        return_s=st.sampled_from([None, "3"]),
        n=st.integers(1, 3),
        leave_share=st.sampled_from([0.0, 0.3]),
        slow_share=st.sampled_from([0.0, 0.5]),
        seed=st.integers(0, 1000),
    ),
    rate=st.floats(0.1, 100),
)
def test_every_plan_is_whole(spec: WorkloadSpec, rate: float) -> None:
    plan = planned(spec, rate, window=300)
    assert len(plan.requests) == spec.num_requests
    assert [request.index for request in plan.requests] == list(range(len(plan.requests)))
    assert starts(plan) == sorted(starts(plan))
    for conversation in plan.conversations:
        history = 0
        for turn, request in enumerate(conversation.turns):
            assert len(words_of(request)) == request.input_len - (COST.later if turn else COST.first) >= 1
            history += request.input_len + request.output_len
            assert request.n == spec.n
        assert history <= 300
    assert plan == planned(spec, rate, window=300)


def test_words_hang_on_the_salt_alone_and_all_else_on_the_seed() -> None:
    spec = WorkloadSpec(input_len="uniform:20:40", num_requests=20, leave_share=0.5)

    def but_words(plan: Plan) -> list[PlannedRequest]:
        return [replace(request, text="") for request in plan.requests]

    plan, salted, seeded = (
        planned(spec, 2.0),
        planned(spec, 2.0, salt="new"),
        planned(replace(spec, seed=1), 2.0),
    )
    assert but_words(plan) == but_words(salted) != but_words(seeded)
    firsts = {(words_of(request)[1], words_of(request)[2]) for request in plan.requests}
    assert firsts.isdisjoint((words_of(request)[1], words_of(request)[2]) for request in salted.requests)


def test_repeats_draw_lengths_times_and_readings_of_their_own() -> None:
    """Three copies of one burst would make an interval that knows of one burst."""
    spec = WorkloadSpec(input_len="uniform:20:400", num_requests=30, leave_share=0.5, seed=7)
    assert of_repeat(spec, 0) == spec
    repeats = [planned(of_repeat(spec, repeat), 2.0) for repeat in range(3)]
    for drawn in (
        [lengths(plan) for plan in repeats],
        [[request.at_s for request in plan.requests] for plan in repeats],
        [[request.reading for request in plan.requests] for plan in repeats],
    ):
        assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert of_repeat(spec, 2) == of_repeat(spec, 2), "whoever is measured and at whatever load"
    assert of_repeat(spec, 1).seed != of_repeat(replace(spec, seed=8), 1).seed


def test_another_rate_leaves_lengths_and_readings_as_they_are() -> None:
    spec = WorkloadSpec(input_len="uniform:20:400", num_requests=30, leave_share=0.5)
    slow, fast = planned(spec, 1.0), planned(spec, 50.0)
    assert lengths(slow) == lengths(fast)
    assert [r.reading for r in slow.requests] == [r.reading for r in fast.requests]


# ---- how many and when -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (WorkloadSpec(num_requests=7), 7),
        (WorkloadSpec(sessions=7), 7),
        (WorkloadSpec(duration_s=3.0), 12),
        (WorkloadSpec(duration_s=3.1, arrival=Arrival.CONSTANT), 13),
        (WorkloadSpec(duration_s=3.0, num_requests=7), 7),
        (WorkloadSpec(duration_s=3.0, num_requests=70), 12),
        (WorkloadSpec(duration_s=3.0, ramp_to=8.0), 18),
        (WorkloadSpec(duration_s=3.0, burstiness=0.2), 12),
    ],
)  # fmt: skip
def test_how_many_there_are(spec: WorkloadSpec, count: int) -> None:
    plan = planned(spec, 4.0)
    assert (len(plan.requests), plan.load) == (count, Load.OPEN)
    assert plan.asked_rate == pytest.approx(mean_rate(starts(plan)))
    if spec.ramp_to is None:
        assert plan.asked_rate == 4.0
    if spec.duration_s is not None:
        assert starts(plan)[-1] < spec.duration_s


def test_users_with_a_duration_stop_by_the_clock_and_have_at_most_what_there_is() -> None:
    spec = WorkloadSpec(max_concurrency=2, duration_s=9.0, num_requests=40)
    plan = planned(spec)
    assert (plan.load, plan.stop_s, len(plan.requests)) == (Load.CLOSED, 9.0, 40)
    assert planned(replace(spec, trace=untimed((20, 5), (30, 6)))).stop_s == 9.0
    assert planned(replace(spec, trace=TIMED, arrival=Arrival.CLOSED)).stop_s == 9.0, "fewer rows than 40"
    assert planned(WorkloadSpec(num_requests=4), 1.0).stop_s == math.inf


def test_servers_that_are_compared_are_asked_the_same_whatever_their_windows() -> None:
    spec = WorkloadSpec(num_requests=20, input_len="uniform:40:900")
    wide = Room(TemplateCost(20, 5), None)
    narrow = Room(COST, 600)
    both = wide.shared_with(narrow)
    assert both == narrow.shared_with(wide) == Room(TemplateCost(20, 7), 600)
    asked = [
        make_plan(spec, rate=1.0, salt="s", words=WORDS, room=room, fitting=both) for room in (wide, narrow)
    ]
    assert lengths(asked[0]) == lengths(asked[1]) != lengths(planned(spec, 1.0))
    assert [len(words_of(plan.requests[0])) for plan in asked] == [
        plan.requests[0].input_len - room.cost.first for plan, room in zip(asked, (wide, narrow), strict=True)
    ]


def test_a_closed_load_has_users_and_no_times() -> None:
    plan = planned(WorkloadSpec(num_requests=9, max_concurrency=3, think_s="uniform:1:2"))
    assert (plan.load, plan.asked_rate, plan.max_concurrency) == (Load.CLOSED, None, 3)
    assert {request.at_s for request in plan.requests} == {None}
    pauses = [request.think_s for request in plan.requests]
    assert 1 <= min(pauses) < max(pauses) <= 2


def test_an_open_load_may_have_a_cap() -> None:
    plan = planned(WorkloadSpec(num_requests=9, max_concurrency=3), 5.0)
    assert (plan.load, plan.asked_rate, plan.max_concurrency) == (Load.OPEN, 5.0, 3)


def test_burstier_arrivals_are_burstier() -> None:
    def spread(burstiness: float) -> float:
        found = starts(planned(WorkloadSpec(num_requests=200, burstiness=burstiness), 10.0))
        return max(later - earlier for earlier, later in pairwise(found))

    assert spread(0.1) > 2 * spread(1.0) > 4 * spread(30.0)


# ---- traces ----------------------------------------------------------------------------------------

TIMED = trace((1000, 20, 5), (2000, 30, 6), (5000, 40, 7))


def test_a_trace_is_replayed_at_its_own_times() -> None:
    plan = planned(WorkloadSpec(trace=TIMED))
    assert (starts(plan), lengths(plan)) == ([0.0, 1.0, 4.0], [(20, 5), (30, 6), (40, 7)])
    assert (plan.load, plan.asked_rate, plan.time_scale) == (Load.OPEN, 0.5, 1.0)


@pytest.mark.parametrize(
    ("spec", "rate", "expected"),
    [
        (WorkloadSpec(trace=TIMED, trace_scale=0.5), None, [0.0, 0.5, 2.0]),
        (WorkloadSpec(trace=TIMED), 2.0, [0.0, 0.25, 1.0]),
        (WorkloadSpec(trace=TIMED, num_requests=2), None, [0.0, 1.0]),
        (WorkloadSpec(trace=TIMED, duration_s=1.5), None, [0.0, 1.0]),
        (WorkloadSpec(trace=TIMED, duration_s=2.0, trace_scale=2.0), None, [0.0]),
        (WorkloadSpec(trace=TIMED, arrival=Arrival.CONSTANT), 2.0, [0.0, 0.5, 1.0]),
    ],
)  # fmt: skip
def test_its_times_can_be_scaled_or_set_aside(
    spec: WorkloadSpec, rate: float | None, expected: list[float]
) -> None:
    plan = planned(spec, rate)
    assert starts(plan) == pytest.approx(expected)
    assert lengths(plan) == [(20, 5), (30, 6), (40, 7)][: len(expected)]
    by_trace = spec.arrival is None
    scale = expected[-1] / [0.0, 1.0, 4.0][len(expected) - 1] if len(expected) > 1 else spec.trace_scale
    assert plan.time_scale == (pytest.approx(scale) if by_trace else None)


def test_a_trace_under_a_closed_load() -> None:
    plan = planned(WorkloadSpec(trace=TIMED, arrival=Arrival.CLOSED, max_concurrency=2))
    assert (plan.load, lengths(plan)) == (Load.CLOSED, [(20, 5), (30, 6), (40, 7)])
    assert {request.at_s for request in plan.requests} == {None}


def test_lengths_can_be_other_than_the_traces() -> None:
    plan = planned(WorkloadSpec(trace=TIMED, input_len="50", output_len="trace"))
    assert (starts(plan), lengths(plan)) == ([0.0, 1.0, 4.0], [(50, 5), (50, 6), (50, 7)])


def test_rows_that_do_not_fit_are_dropped_and_counted() -> None:
    """The third leaves no word beside the template, the second exceeds the window by one token."""
    rows = trace((0, 20, 5), (1000, 60, 41), (2000, 10, 5), (3000, 60, 40), (4000, 11, 5))
    plan = planned(WorkloadSpec(trace=rows), window=100)
    assert (lengths(plan), plan.dropped) == ([(20, 5), (60, 40), (11, 5)], 2)
    assert starts(plan) == [0.0, 3.0, 4.0]
    first = planned(WorkloadSpec(trace=rows, num_requests=1), window=100)
    assert (lengths(first), first.dropped) == ([(20, 5)], 0)


def test_pairs_without_times_are_drawn() -> None:
    pairs = untimed((20, 5), (30, 6), (900, 7))
    plan = planned(WorkloadSpec(trace=pairs, num_requests=300), 5.0, window=100)
    drawn = Counter(lengths(plan))
    assert set(drawn) == {(20, 5), (30, 6)}
    assert min(drawn.values()) > 100
    assert 100 < plan.dropped < 220


def shared_words(one: PlannedRequest, other: PlannedRequest) -> int:
    pairs = zip(words_of(one), words_of(other), strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(words_of(one)))


def test_prompts_share_what_the_rows_of_the_trace_share() -> None:
    """Beyond that a word is the same by chance once in 997 times."""
    source = read_trace("mooncake-conversation")
    plan = planned(WorkloadSpec(trace=source, num_requests=40), window=9_000)
    rows = [row for row in source.rows if row.input_len + row.output_len <= 9_000]
    for (one, row), (other, other_row) in pairwise(zip(plan.requests, rows, strict=False)):
        ids = zip(row.block_ids, other_row.block_ids, strict=False)
        blocks = next((place for place, (a, b) in enumerate(ids) if a != b), 0)
        assert shared_words(one, other) in range(1 + 512 * blocks, 1 + 512 * blocks + 3)
        assert len(words_of(one)) == row.input_len - COST.first


def test_a_prefix_cache_finds_what_the_trace_lets_it_find() -> None:
    """7.7 % of the full blocks of this trace came before; a cache of blocks of 16 finds as many tokens."""
    seen = set[int]()
    hits = total = 0
    for request in planned(WorkloadSpec(trace=read_trace("sharegpt-multiturn"))).requests:
        words = words_of(request)[1:]
        prefixes = [hash(tuple(words[:end])) for end in range(16, len(words) + 1, 16)]
        hits += sum(prefix in seen for prefix in prefixes)
        total += len(prefixes)
        seen.update(prefixes)
    assert hits / total == pytest.approx(0.077, abs=0.002)


# ---- conversations ---------------------------------------------------------------------------------


def test_turns_are_made_of_lengths_and_pauses() -> None:
    spec = WorkloadSpec(
        input_len="100", later_input_len="30", output_len="20", sessions=5, turns="3", think_s="2"
    )
    plan = planned(spec, 1.0)
    assert (len(plan.conversations), len(plan.requests), plan.asked_rate) == (5, 15, 1.0)
    for conversation in plan.conversations:
        first, *later = conversation.turns
        assert (first.input_len, first.think_s) == (100, 0.0)
        assert [(turn.input_len, turn.think_s, turn.at_s) for turn in later] == [(30, 2.0, None)] * 2


def test_returns_are_planned_from_turn_to_turn() -> None:
    plan = planned(WorkloadSpec(sessions=4, turns="3", return_s="uniform:5:6"), 1.0)
    for conversation in plan.conversations:
        times = [turn.at_s or 0.0 for turn in conversation.turns]
        assert all(5 <= later - earlier <= 6 for earlier, later in pairwise(times))


def test_a_conversation_ends_before_the_turn_that_does_not_fit() -> None:
    spec = WorkloadSpec(input_len="40", output_len="10", sessions=2, turns="5")
    plan = planned(spec, 1.0, window=160)
    assert [len(conversation.turns) for conversation in plan.conversations] == [3, 3]
    assert plan.dropped == 4


def test_the_last_conversation_ends_when_there_are_enough_requests() -> None:
    plan = planned(WorkloadSpec(num_requests=7, turns="3"), 1.0)
    assert [len(conversation.turns) for conversation in plan.conversations] == [3, 3, 1]
    assert plan.dropped == 0


def test_rows_of_a_session_are_a_conversation() -> None:
    """Their prompts count the history; one that is too short for it begins anew."""
    rows = trace(
        (0, 20, 5, "a"), (1000, 30, 6, "b"), (2000, 40, 7, "a"), (3000, 60, 8, "a"), (4000, 25, 9, "b"),
        (5000, 50, 9), (6000, 50, 3, "b"),
    )  # fmt: skip
    plan = planned(WorkloadSpec(trace=rows, trace_scale=0.5))
    found = [[(t.input_len, t.output_len, t.at_s) for t in c.turns] for c in plan.conversations]
    assert found == [
        [(20, 5, 0.0), (15, 7, 1.0), (13, 8, 1.5)],
        [(30, 6, 0.5)],
        [(25, 9, 2.0), (16, 3, 3.0)],
        [(50, 9, 2.5)],
    ]
    assert plan.asked_rate == pytest.approx(3 / 2.5)


def test_lengths_of_a_trace_can_be_turns() -> None:
    plan = planned(WorkloadSpec(trace=TIMED, turns="2", sessions=50), 5.0)
    assert len(plan.requests) == 100
    assert set(lengths(plan)) == {(20, 5), (30, 6), (40, 7)}


# ---- what prompts share, what clients do -----------------------------------------------------------


def test_shared_prefixes_come_before_the_prompt() -> None:
    spec = WorkloadSpec(input_len="50", num_requests=60, num_prefixes=3, prefix_len=128)
    plan = planned(spec, 5.0)
    assert {request.input_len for request in plan.requests} == {178}
    heads = Counter(tuple(words_of(request)[:129]) for request in plan.requests)
    assert len(heads) == 3
    assert min(heads.values()) > 8
    assert len({tuple(words_of(request)[129:135]) for request in plan.requests}) == 60


def test_only_the_first_turn_of_a_conversation_has_a_prefix() -> None:
    spec = WorkloadSpec(input_len="50", sessions=6, turns="2", num_prefixes=1, prefix_len=128)
    assert lengths(planned(spec, 5.0)) == [(178, 128), (50, 128)] * 6


def test_clients_that_leave_or_read_slowly_are_their_exact_share() -> None:
    spec = WorkloadSpec(
        input_len="50", output_len="uniform:2:4", sessions=40, turns="2", leave_share=0.25, slow_share=0.5,
        slow_pause_s=0.3,
    )  # fmt: skip
    leaving = slow = 0
    for conversation in planned(spec, 5.0).conversations:
        first, last = conversation.turns
        assert first.reading.leave_after == math.inf
        if last.reading.leave_after < math.inf:
            assert 1 <= last.reading.leave_after < last.output_len
            assert last.reading.pause_s == 0
            leaving += 1
        assert first.reading.pause_s == last.reading.pause_s
        slow += first.reading.pause_s == 0.3
    assert (leaving, slow) == (10, 20)


# ---- warm-up ---------------------------------------------------------------------------------------


def test_a_warm_up_is_like_the_plan_and_shares_nothing_with_it() -> None:
    source = read_trace("sharegpt-multiturn")
    spec = WorkloadSpec(
        trace=source, n=2, leave_share=0.5, think_s="3", duration_s=20.0, burstiness=1.0, max_concurrency=50
    )
    plan, warm_up = planned(spec), warmed_up(spec, 12)
    assert (warm_up.load, warm_up.max_concurrency, len(warm_up.requests)) == (Load.CLOSED, 12, 12)
    assert lengths(warm_up) == lengths(plan)[:12]
    assert {r.n for r in warm_up.requests} == {2}
    assert {(r.reading.leave_after, r.think_s, r.at_s) for r in warm_up.requests} == {(math.inf, 0.0, None)}
    assert all(
        shared_words(one, other) < 4 for one, other in zip(plan.requests, warm_up.requests, strict=False)
    )


def test_a_warm_up_takes_first_turns_and_what_there_is() -> None:
    assert len(warmed_up(WorkloadSpec(trace=TIMED), 9).requests) == 3
    sessions = WorkloadSpec(sessions=3, turns="4", return_s="5")
    assert [len(c.turns) for c in warmed_up(sessions, 6).conversations] == [1] * 6
    with pytest.raises(WorkloadError, match="No request"):
        warmed_up(WorkloadSpec(trace=TIMED), 9, window=20)


# ---- what cannot be asked for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "rate", "message"),
    [
        (WorkloadSpec(trace=TIMED, num_requests=4), 1.0, "Of the 4 requests .* only 3 are there"),
        (WorkloadSpec(trace=TIMED, sessions=4), 1.0, "Of the 4 conversations .* only 3 are there"),
        (WorkloadSpec(trace=TIMED, duration_s=60.0), 1.0, "Of the 60 conversations"),
        (WorkloadSpec(trace=trace((0, 20, 5), (0, 30, 6))), 1.0, "come at once"),
        (WorkloadSpec(num_requests=3, input_len="600"), 1.0, "window of 700 tokens"),
        (WorkloadSpec(num_requests=3, input_len="10"), 1.0, "the template alone takes 10"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for(spec: WorkloadSpec, rate: float | None, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        planned(spec, rate, window=700)


def test_a_trace_without_an_order_of_its_own_is_the_only_one_that_is_drawn() -> None:
    lines = [
        json.dumps({"input_length": tokens, "output_length": 3, "hash_ids": [1, tokens]})
        for tokens in random.Random(0).sample(range(520, 900), 30)
    ]
    blocks = parse_trace("\n".join(lines).encode(), "blocks")
    plan = planned(WorkloadSpec(trace=blocks), 5.0)
    assert [request.input_len for request in plan.requests] == [row.input_len for row in blocks.rows]


def test_a_template_may_take_tokens_away() -> None:
    """Or a server counts none at all, which its usage shows; there is a prompt either way."""
    spec = WorkloadSpec(input_len="30", num_requests=2)
    plan = make_plan(spec, rate=1.0, salt="salt", words=WORDS, room=Room(TemplateCost(-16, -16), None))
    assert [len(request.text.split()) for request in plan.requests] == [46, 46]
