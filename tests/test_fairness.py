"""Shares between tenants, classes and the starvation bound, over a scheduler in which a step is a step."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from types import FrameType

import pytest

from engine.fairness import MAX_DEBTORS, FairShares
from engine.messages import BeamParams
from engine.parked_line import OVERDUE_S
from engine.request import SequenceGroup
from engine.room import Room
from tests.support.crowd import Client, Crowd, execute
from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine

SHORT, LONG_ANSWER, LONG_PROMPT, LONG = (8, 10), (8, 200), (300, 4), (300, 200)


def flood(tenant: str, kind: tuple[int, int], in_flight: int = 1000, **more: float) -> Client:
    prompt, output = kind
    return Client(tenant=tenant, in_flight=in_flight, prompt=prompt, output=output, **more)  # type: ignore[arg-type]


def bound(crowd: Crowd) -> float:
    """How far the costs of two tenants may be apart: what comes of giving way once a quantum, and a request.

    Of P places the one that holds none gets one with each quantum that is served, until it has P/2; until
    then it loses P/8 quanta of its own to the other, and the first before it gets any.
    """
    longest = max(client.prompt + 2 * client.output for client in crowd.clients)
    return crowd.quantum * (1 + crowd.config.max_num_seqs / 4) + longest


# ---- shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [10**6, 4096], ids=["places are short", "blocks are short"])
@pytest.mark.parametrize("num_seqs", [1, 2, 8])
@pytest.mark.parametrize("kind", [SHORT, LONG_ANSWER, LONG_PROMPT, LONG])
def test_a_flood_takes_no_more_than_its_share(kind: tuple[int, int], num_seqs: int, num_tokens: int) -> None:
    """Another tenant comes later, with just enough requests to use half of the places."""
    crowd = Crowd(flood("a", kind), num_seqs=num_seqs, num_tokens=num_tokens)
    crowd.run(60)
    crowd.clients.append(flood("b", kind, in_flight=max(2, num_seqs)))
    before = Counter(crowd.served)
    for _ in range(1000):
        crowd.step()
        since = crowd.served - before
        assert since["a"] - since["b"] <= bound(crowd)
    assert since["b"] >= since.total() / 2 - bound(crowd) / 2


@pytest.mark.parametrize("flooding", [LONG_ANSWER, LONG_PROMPT, LONG])
@pytest.mark.parametrize("kind", [SHORT, LONG_PROMPT])
def test_one_that_sends_a_request_at_a_time_never_waits_long(
    kind: tuple[int, int], flooding: tuple[int, int]
) -> None:
    """A request waits until the flood was served some quanta, not until its answers end."""
    crowd = Crowd(flood("a", flooding), num_seqs=4)
    crowd.run(100)
    quiet = flood("b", kind, in_flight=1)
    crowd.clients.append(quiet)
    worst = at_arrival = 0
    for _ in range(1500):
        if quiet.live <= crowd.started.keys():
            at_arrival = crowd.served["a"]
        crowd.step()
        worst = max(worst, crowd.served["a"] - at_arrival)
    assert quiet.num_sent > 10
    one_prompt = max(flooding[0], kind[0])
    assert worst <= 2 * crowd.quantum + 2 * one_prompt


@pytest.mark.parametrize("kind", [SHORT, LONG_ANSWER, LONG_PROMPT, LONG])
@pytest.mark.parametrize("num_tokens", [10**6, 4096])
def test_shares_are_as_the_weights(kind: tuple[int, int], num_tokens: int) -> None:
    crowd = Crowd(flood("a", kind, weight=3.0), flood("b", kind), num_seqs=8, num_tokens=num_tokens)
    crowd.run(1500)
    assert abs(crowd.served["a"] - 3 * crowd.served["b"]) <= 3 * bound(crowd)
    crowd.run(1500)
    assert abs(crowd.served["a"] - 3 * crowd.served["b"]) <= 3 * bound(crowd)
    assert 2.5 < crowd.served["a"] / crowd.served["b"] < 3.5


def test_many_tenants_get_the_same() -> None:
    crowd = Crowd(*(flood(f"t{i}", LONG_ANSWER, in_flight=20) for i in range(20)), num_seqs=8)
    crowd.run(4000)
    assert max(crowd.served.values()) - min(crowd.served.values()) <= 2 * bound(crowd)


def test_one_tenant_alone_gets_everything() -> None:
    alone, beside = Crowd(flood("a", LONG)), Crowd(flood("a", LONG), flood("b", LONG, in_flight=0))
    alone.run(500)
    beside.run(500)
    assert alone.served == beside.served
    assert not alone.scheduler.totals.preemptions


def test_what_one_leaves_another_gets() -> None:
    """A tenant with one request gets all that this one can take, and the other all the rest."""
    alone = Crowd(flood("b", LONG_ANSWER, in_flight=1), num_seqs=8)
    crowd = Crowd(flood("a", LONG_ANSWER), flood("b", LONG_ANSWER, in_flight=1), num_seqs=8)
    full = Crowd(flood("a", LONG_ANSWER), num_seqs=8)
    for each in (alone, crowd, full):
        each.run(1500)
    assert crowd.served["b"] > 0.8 * alone.served["b"]
    assert crowd.served.total() > 0.98 * full.served.total()


def test_idleness_is_not_saved_up() -> None:
    crowd = Crowd(flood("a", LONG_ANSWER), flood("b", SHORT, in_flight=1, total=1), num_seqs=8)
    crowd.run(1500)
    crowd.clients.append(flood("b", LONG_ANSWER))
    crowd.clients[-1].num_sent = 1
    before = Counter(crowd.served)
    crowd.run(1000)
    since = crowd.served - before
    assert since["b"] - since["a"] <= bound(crowd)


def test_a_request_that_runs_on_and_on_saves_nothing_up_either() -> None:
    """It takes less than its tenant's share, by choice; a flood of that tenant is not owed the difference."""
    crowd = Crowd(flood("a", LONG_ANSWER), flood("b", (8, 1900), in_flight=1), num_seqs=8)
    crowd.run(1500)
    assert crowd.served["a"] > 3 * crowd.served["b"]
    crowd.clients[1] = flood("b", LONG_ANSWER)
    crowd.clients[1].num_sent = 1
    before = Counter(crowd.served)
    crowd.run(1000)
    since = crowd.served - before
    assert since["b"] - since["a"] <= 2 * bound(crowd)


def test_a_tenant_that_leaves_with_too_much_comes_back_with_it() -> None:
    """Ending all requests and sending them anew forgives nothing while others wait."""
    shares = FairShares()
    shares.set_contended(True)
    rest, quitter = shares.enter("rest", 1.0), shares.enter("quitter", 1.0)
    for share in (rest, quitter):
        shares.set_in_line(share, True)
    shares.charge("quitter", 500.0)
    shares.set_in_line(quitter, False)
    shares.leave(quitter)
    again = shares.enter("quitter", 1.0)
    shares.set_in_line(again, True)
    assert again.lead(rest) == 500.0
    assert shares.least() is rest


def test_a_tenant_keeps_what_it_was_behind_but_gains_nothing_while_it_does_not_wait() -> None:
    shares = FairShares()
    ahead, behind = shares.enter("ahead", 1.0), shares.enter("behind", 1.0)
    for share in (ahead, behind):
        shares.set_in_line(share, True)
    shares.charge("ahead", 500.0)
    shares.set_in_line(behind, False)
    for tenant, cost in (("ahead", 100.0), ("behind", 50.0)):
        shares.charge(tenant, cost)
    shares.set_in_line(behind, True)
    assert ahead.lead(behind) == 500.0


def test_what_is_remembered_of_tenants_that_left_is_bounded() -> None:
    shares = FairShares()
    shares.set_contended(True)
    shares.set_in_line(shares.enter("rest", 1.0), True)
    for number in range(3 * MAX_DEBTORS):
        share = shares.enter(f"t{number}", 1.0)
        for in_line in (True, False):
            shares.set_in_line(share, in_line)
        shares.charge(share.tenant, 10.0)
        shares.leave(share)
    assert len(shares._debtors) == MAX_DEBTORS
    assert len(shares._line) < 100
    for contended in (False, True):
        shares.set_contended(contended)
    assert not shares._debtors


def test_what_is_served_while_nobody_waits_is_not_held_against_anybody() -> None:
    crowd = Crowd(flood("a", (8, 400), in_flight=6), num_seqs=8)
    crowd.run(300)
    crowd.clients.append(flood("b", (8, 400), in_flight=6))
    crowd.run(5)
    assert crowd.scheduler.queues.shares.of("a").served < 2 * 8 * 5
    running = Counter(group.tenant for group in crowd.scheduler.queues.running.values())
    assert running == {"a": 6, "b": 2}


# ---- what is charged -----------------------------------------------------------------------------


def test_a_prompt_costs_one_a_token_and_an_answer_two() -> None:
    crowd = Crowd(flood("a", LONG), flood("b", SHORT, in_flight=40))
    crowd.run(300)
    for tenant in ("a", "b"):
        assert crowd.scheduler.queues.shares.of(tenant).served == crowd.served[tenant]


def cost(engine: SmallEngine) -> float:
    """What was charged for all requests so far."""
    engine.run()
    return engine.scheduler.queues.shares.total


def test_what_the_cache_holds_costs_nothing() -> None:
    engine = SmallEngine()
    engine.add("first", list(range(16)), max_tokens=1)
    assert cost(engine) == 16 + 2
    engine.add("again", list(range(16)), max_tokens=1)
    assert cost(engine) == 16 + 2 + 4 + 2


def test_what_was_lost_to_others_is_computed_again_for_nothing() -> None:
    engine = SmallEngine(prefix_caching=False)
    engine.add("mine", [1] * 20, max_tokens=30)
    for _ in range(3):
        for _ in range(4):
            engine.step()
        engine.scheduler.preempt(engine.scheduler.queues.running["mine"])
    assert cost(engine) == 20 + 2 * 30
    assert engine.core.stats().recomputed_tokens_total > 0


def test_what_a_slow_reader_lost_is_charged_again() -> None:
    engine = SmallEngine(prefix_caching=False)
    engine.add("slow", [1] * 20, max_tokens=30)
    for _ in range(6):
        engine.step()
    engine.core.pause("slow")
    engine.scheduler.preempt(engine.scheduler.queues.running["slow"])
    engine.core.resume("slow")
    assert cost(engine) - (20 + 2 * 30) == engine.core.stats().recomputed_tokens_total + 1  # the last was new


def test_each_sequence_of_a_group_is_charged() -> None:
    engine = SmallEngine()
    engine.add("two", [7] * 10, max_tokens=5, n=2)
    assert cost(engine) == 10 + 2 * (5 + 5)
    engine.add("beams", [8] * 10, max_tokens=5, n=1, beam=BeamParams(3))
    assert cost(engine) == 2 * 10 + 2 * (5 + 5) + 2 * (1 + 4 * 3)


# ---- giving way ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SHORT, LONG_ANSWER, LONG, (1500, 100)])
@pytest.mark.parametrize("num_seqs", [1, 3, 8])
def test_no_more_give_way_than_quanta_are_served_and_little_is_computed_again(
    kind: tuple[int, int], num_seqs: int
) -> None:
    crowd = Crowd(*(flood(tenant, kind) for tenant in "abc"), num_seqs=num_seqs)
    crowd.run(2500)
    assert crowd.num_share_preemptions <= crowd.served.total() / crowd.quantum + 1
    assert crowd.num_recomputed <= crowd.num_steps * crowd.config.max_num_batched_tokens / 4
    alone = Crowd(flood("a", kind), num_seqs=num_seqs)
    alone.run(2500)
    assert crowd.served.total() >= 0.7 * alone.served.total()


@pytest.mark.parametrize("kind", [LONG, LONG_ANSWER])
def test_who_gives_way_has_had_its_time_and_others_get_theirs(
    kind: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quantum is served between two that give way; each has run four times as long as it took to begin,
    and would go on for four times as long as it takes to begin again.
    """
    crowd = Crowd(flood("a", kind, in_flight=8), num_seqs=8)
    step_tokens = crowd.config.max_num_batched_tokens
    since: dict[str, tuple[int, int]] = {}  # the step in which it began to run, and its tokens then
    served: list[float] = []
    preempt = Room.preempt

    def watched(room: Room, group: SequenceGroup, *, for_share: bool = False) -> None:
        begun_at, num_tokens = since.pop(group.request_id)
        if for_share:
            served.append(crowd.served.total())
            assert crowd.num_steps - begun_at >= 4 * num_tokens // step_tokens
            num_left = group.max_total_tokens - group.first.num_tokens
            assert num_left >= 4 * group.first.num_computed_tokens // step_tokens
        preempt(room, group, for_share=for_share)

    monkeypatch.setattr(Room, "preempt", watched)
    for step in range(1500):
        if step == 50:
            crowd.clients += [flood(tenant, kind, in_flight=8) for tenant in "bc"]
        crowd.step()
        for request_id, group in crowd.scheduler.queues.running.items():
            since.setdefault(request_id, (step, group.first.num_tokens))
    assert len(served) > 5
    assert min(later - earlier for earlier, later in pairwise(served)) >= crowd.quantum


def test_what_has_just_begun_or_ends_soon_does_not_give_way() -> None:
    crowd = Crowd(*(flood(tenant, (1500, 20)) for tenant in "abc"), num_seqs=2)
    crowd.run(1500)
    assert not crowd.scheduler.totals.preemptions


def test_a_request_gives_way_so_often_only_whatever_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then another one gives way; if there is none, the tenant in line waits for an end."""
    most: Counter[str] = Counter()
    preempt = Room.preempt

    def counted(room: Room, group: SequenceGroup, *, for_share: bool = False) -> None:
        most[group.request_id] += 1
        preempt(room, group, for_share=for_share)

    monkeypatch.setattr(Room, "preempt", counted)
    monkeypatch.setattr("engine.request.MAX_PREEMPTIONS", 2)
    crowd = Crowd(flood("a", (8, 1900), in_flight=8), flood("b", (8, 40), in_flight=4), num_seqs=2)
    crowd.run(3000)
    assert max(most.values()) == 2
    assert len(most) > 1


def test_giving_way_loses_no_token_and_swaps_if_it_can() -> None:
    engine = SmallEngine(num_blocks=64, host_blocks=64, max_num_seqs=2, quantum_steps=1.0)
    for number in range(6):
        engine.add(f"a{number}", [number] * 5, max_tokens=60, tenant="a")
    for _ in range(20):
        engine.step()
    for number in range(4):
        engine.add(f"b{number}", [50 + number] * 5, max_tokens=20, tenant="b")
    engine.run()
    assert engine.scheduler.totals.preemptions["swap/share"] > 0
    for number in range(6):
        assert engine.tokens[f"a{number}"] == expected_tokens([number] * 5, 60)
    for number in range(4):
        assert engine.tokens[f"b{number}"] == expected_tokens([50 + number] * 5, 20)


def test_a_group_gives_way_and_gets_room_as_one() -> None:
    engine = SmallEngine(num_blocks=128, max_num_seqs=4, quantum_steps=1.0)
    for number in range(3):
        engine.add(f"a{number}", [number] * 5, max_tokens=60, tenant="a", n=4)
    for _ in range(10):
        engine.step()
    engine.add("b", [50] * 5, max_tokens=20, tenant="b", n=3)
    engine.run()
    assert engine.scheduler.totals.preemptions["recompute/share"] > 0
    assert next(iter(engine.finished)) == "b"
    for index in range(4):
        assert engine.sample("a0", index) == expected_tokens([0] * 5, 60, seed=index)


def test_who_lacks_blocks_takes_them_from_the_tenant_that_was_served_most() -> None:
    """Not from the last arrival: that one is of a tenant that has got little."""
    engine = SmallEngine(num_blocks=24, block_size=4, max_num_seqs=8)
    for number in range(4):
        engine.add(f"a{number}", [number] * 5, max_tokens=40, tenant="a")
    for _ in range(6):
        engine.step()
    engine.add("b", [50] * 5, max_tokens=40, tenant="b")
    while not engine.core.stats().preemptions_total:
        engine.step()
    assert engine.scheduler.queues.get("b").num_preemptions == 0  # type: ignore[union-attr]
    assert engine.scheduler.queues.get("a3").num_preemptions == 1  # type: ignore[union-attr]
    engine.run()
    assert engine.tokens["b"] == expected_tokens([50] * 5, 40)


def test_a_paused_tenant_neither_claims_nor_holds_a_place() -> None:
    engine = SmallEngine(num_blocks=64, max_num_seqs=2, quantum_steps=1.0)
    for name in ("a0", "a1"):
        engine.add(name, [1] * 5, max_tokens=50, tenant="a")
    engine.step()
    engine.add("b", [2] * 5, max_tokens=5, tenant="b")
    engine.core.pause("b")
    engine.run()
    assert not engine.core.stats().preemptions_total
    engine.core.resume("b")
    engine.run()
    assert engine.tokens["b"] == expected_tokens([2] * 5, 5)


# ---- order within a step -------------------------------------------------------------------------


def test_prefills_take_the_budget_in_turns() -> None:
    """A long prompt that is being computed does not keep the prompt of another tenant out of the step."""
    engine = SmallEngine(num_blocks=256, max_num_seqs=4, max_num_batched_tokens=16)
    engine.add("long", [1] * 400, max_tokens=1, tenant="a")
    engine.step()
    engine.add("short", [2] * 40, max_tokens=1, tenant="b")
    for _ in range(8):
        engine.step()
    assert "short" in engine.finished
    assert "long" not in engine.finished


def test_what_waits_costs_a_step_nothing() -> None:
    """As many calls are made with ten thousand in line as with a hundred."""
    counts = []
    for num_waiting in (100, 10_000):
        crowd = Crowd(*(flood(tenant, LONG_ANSWER, num_waiting) for tenant in "ab"), num_seqs=4)
        crowd.run(10)
        num_calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal num_calls  # not those of garbage collection and the like
            num_calls += frame.f_globals.get("__name__", "").startswith(("engine.", "tiering."))

        sys.setprofile(count)
        for _ in range(50):
            crowd.scheduler.update(plan := crowd.scheduler.schedule(), execute(plan))
        sys.setprofile(None)
        counts.append(num_calls)
    assert counts[0] == counts[1]


# ---- classes -------------------------------------------------------------------------------------


def test_within_a_tenant_the_better_class_goes_first_between_tenants_it_does_not() -> None:
    engine = SmallEngine(max_num_seqs=1)
    for name, priority in (("late", 1), ("plain", 0), ("urgent", -1)):
        engine.add(name, [1, 2, 3], max_tokens=2, priority=priority)
    engine.run()
    assert list(engine.finished) == ["urgent", "plain", "late"]
    crowd = Crowd(flood("a", LONG_ANSWER, priority=-1), flood("b", LONG_ANSWER, priority=1), num_seqs=4)
    crowd.run(1500)
    assert abs(crowd.served["a"] - crowd.served["b"]) <= bound(crowd)


def test_no_class_waits_for_ever() -> None:
    """A step is a second here: who waits longer than the bound comes before what came later."""
    crowd = Crowd(flood("a", SHORT, in_flight=4, priority=-1), num_seqs=2)
    crowd.run(20)
    slow = flood("a", SHORT, in_flight=1, total=1, priority=5)
    crowd.clients.append(slow)
    crowd.run(int(OVERDUE_S))
    (name,) = slow.live
    assert name not in crowd.started
    crowd.run(40)
    assert name in crowd.started


def test_the_overdue_are_of_the_best_class_in_the_order_of_arrival() -> None:
    engine = SmallEngine(max_num_seqs=1, num_blocks=64)
    engine.add("running", [1], max_tokens=int(OVERDUE_S) + 10)
    engine.step()
    for name, priority in (("flex0", 2), ("plain0", 0), ("flex1", 1)):
        engine.add(name, [1, 2], max_tokens=1, priority=priority)
    for _ in range(int(OVERDUE_S) + 2):
        engine.step()
    for name, priority in (("plain1", 0), ("flex2", 1)):
        engine.add(name, [1, 2], max_tokens=1, priority=priority)
    engine.run()
    assert list(engine.finished) == ["running", "flex0", "plain0", "flex1", "plain1", "flex2"]


def test_time_in_which_the_client_does_not_read_is_no_waiting() -> None:
    engine = SmallEngine(max_num_seqs=1, num_blocks=64)
    engine.add("running", [1], max_tokens=int(OVERDUE_S) + 10)
    engine.add("flex", [1, 2], max_tokens=1, priority=1)
    engine.core.pause("flex")
    for _ in range(int(OVERDUE_S) + 2):
        engine.step()
    engine.core.resume("flex")
    engine.add("plain", [1, 2], max_tokens=1)
    engine.run()
    assert list(engine.finished) == ["running", "plain", "flex"]


def test_a_prefill_that_has_begun_is_not_starved_by_a_better_class() -> None:
    """Whatever comes is admitted after the chunks of those that run."""
    engine = SmallEngine(num_blocks=400, max_num_seqs=8, max_num_batched_tokens=16)
    engine.add("flex", [1] * 100, max_tokens=1, priority=1)
    engine.step()
    number = 0
    while "flex" not in engine.finished:
        while len(engine.scheduler.queues) < 4:
            number += 1
            engine.add(f"r{number}", [2 + number % 900] * 64, max_tokens=1)
        engine.step()
        assert engine._num_steps < OVERDUE_S


# ---- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    engine = SmallEngine()
    engine.add("bad", [1], weight=weight)
    engine.step()
    assert "weight" in engine.errors["bad"]


def test_nothing_of_a_tenant_is_left_when_its_requests_are_gone() -> None:
    engine = SmallEngine(max_num_seqs=1)
    for name in ("a", "b", "c"):
        engine.add(name, [1, 2, 3], max_tokens=4, tenant=name)
    engine.step()
    engine.core.abort("c")
    assert engine.scheduler.queues.num_tenants == 2
    engine.run()
    assert engine.scheduler.queues.num_tenants == 0
    assert not engine.scheduler.queues.shares._shares
