"""What policies decide (who goes first, what is copied down, how KV comes back) and how they are named."""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.block_pool import BlockPool
from tiering.policies.eviction import (
    CachedBlock,
    CostAwareEviction,
    EvictionPolicy,
    FifoEviction,
    LfuEviction,
    LruEviction,
    S3FifoEviction,
    SessionAwareEviction,
)
from tiering.policies.registry import (
    EVICTION,
    RESTORE,
    WRITE,
    PolicyError,
    eviction_factory,
    restore_factory,
    write_factory,
)
from tiering.policies.restore import (
    Adaptive,
    Overlap,
    Recompute,
    RestoreMode,
    RestorePolicy,
    RestoreSituation,
    Swap,
    blocks_to_compute,
)
from tiering.policies.write import WriteBack, WritePolicy, WriteSelective, WriteThrough
from tiering.tiers import Tiers
from tiering.types import BlockHash, BlockId, BlockLabel, Tier, TransferOutcome, TransferResult

ALL_EVICTION = pytest.mark.parametrize("name", EVICTION)


def name_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "little"))


def cached(
    block: int,
    *,
    content: int | None = None,
    depth: int = 0,
    hits: int = 0,
    used: float = 0.0,
    costs: float = 1.0,
    returns: float | None = None,
) -> CachedBlock:
    name = name_of(block if content is None else content)
    return CachedBlock(BlockId(block), name, depth, hits, used, costs, returns)


def add(policy: EvictionPolicy, *blocks: int) -> None:
    for block in blocks:
        policy.add(cached(block))


def hit(policy: EvictionPolicy, *blocks: int) -> None:
    for block in blocks:
        policy.take(BlockId(block))
        policy.add(cached(block))


def evict(policy: EvictionPolicy, count: int, now: float = 0.0) -> list[BlockId]:
    """What the pool does when it needs room."""
    victims = policy.victims(count, now)
    for block in victims:
        policy.forget(block)
    return victims


# ---- every eviction policy ------------------------------------------------------------------------

NUM_BLOCKS = 12
COMMANDS = st.tuples(
    st.sampled_from(["add", "add", "add", "take", "forget", "victims"]),
    st.integers(0, NUM_BLOCKS - 1),
    st.integers(0, 3),
    st.floats(0, 500),
)


class Plain:
    """What any policy must know: which blocks are evictable, and which are known but in use."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.evictable: set[BlockId] = set()
        self.in_use: set[BlockId] = set()
        self.num_evicted = 0
        self.now = 0.0

    def obey(self, command: str, number: int, detail: int, seconds: float) -> None:
        self.now += seconds
        block = BlockId(number)
        if command == "add" and block not in self.evictable:
            self._add(block, detail, seconds)
        elif command == "take" and block in self.evictable:
            self.policy.take(block)
            self.evictable.remove(block)
            self.in_use.add(block)
        elif command == "forget":
            self._evict(detail)
        elif command == "victims":
            self._rank(number)
        self._check()

    def _add(self, block: BlockId, detail: int, seconds: float) -> None:
        # Content that was evicted may come back in another block, which s3fifo must notice.
        content = int(block) + NUM_BLOCKS * (self.num_evicted % 3)
        returns = self.now + seconds if detail == 3 else None
        self.policy.add(
            cached(block, content=content, hits=detail, used=self.now, costs=seconds, returns=returns)
        )
        self.in_use.discard(block)
        self.evictable.add(block)

    def _evict(self, count: int) -> None:
        for block in self._rank(count):
            self.policy.forget(block)
            self.evictable.remove(block)
            self.num_evicted += 1

    def _rank(self, count: int) -> list[BlockId]:
        victims = self.policy.victims(count, self.now)
        assert len(victims) == len(set(victims)) == min(count, len(self.evictable))
        assert set(victims) <= self.evictable
        return victims

    def _check(self) -> None:
        listed = list(self.policy)
        assert len(self.policy) == len(listed) == len(self.evictable)
        assert set(listed) == self.evictable
        assert set(self._rank(NUM_BLOCKS + 1)) == self.evictable


@given(st.lists(COMMANDS, max_size=60))
def test_every_policy_knows_exactly_what_is_evictable(commands: list[tuple[str, int, int, float]]) -> None:
    for factory in EVICTION.values():
        model = Plain(factory())
        for command in commands:
            model.obey(*command)


@given(st.lists(COMMANDS, max_size=40), st.integers(0, NUM_BLOCKS), st.integers(0, NUM_BLOCKS))
def test_asking_for_more_victims_only_adds_to_them(
    commands: list[tuple[str, int, int, float]], few: int, more: int
) -> None:
    few, more = sorted((few, more))
    for name, factory in EVICTION.items():
        if name == "s3fifo":  # its queues move when it is asked
            continue
        model = Plain(factory())
        for command in commands:
            model.obey(*command)
        assert model.policy.victims(more, model.now)[:few] == model.policy.victims(few, model.now)


def filled(pool: BlockPool, *, num_blocks: int) -> list[BlockId]:
    """Name the blocks of one table, by their depth."""
    blocks = pool.try_allocate(num_blocks)
    assert blocks is not None
    for depth, block in enumerate(blocks):
        pool.publish(block, BlockLabel(name_of(depth), depth))
    return blocks


@ALL_EVICTION
def test_equal_blocks_of_a_table_are_evicted_from_its_end(name: str) -> None:
    pool = BlockPool(6, eviction_factory(name))
    pool.release(reversed(filled(pool, num_blocks=6)))
    for taken, left in ((2, 4), (3, 1)):
        pool.try_allocate(taken)
        assert {name for name, _ in pool.named_blocks()} == {name_of(depth) for depth in range(left)}


def test_copying_a_block_down_does_not_change_its_rank() -> None:
    """Or else what was copied ahead of its eviction is kept, and what was not is evicted and lost."""
    for name in EVICTION:
        device, host = (BlockPool(8, eviction_factory(name)) for _ in range(2))
        tiers = Tiers(device, host, writes={Tier.DEVICE: WriteBack()})
        device.release(reversed(filled(device, num_blocks=8)))
        tiers.set_time(1.0)
        tiers.clean_ahead()
        copied = {job.source for job in tiers.jobs()}
        for job in tuple(tiers.jobs()):
            tiers.complete(TransferResult(job.transfer_id, TransferOutcome.DONE))
        assert len(copied) == 2
        assert set(device.try_allocate(2) or ()) == copied, name


@ALL_EVICTION
def test_each_tier_gets_a_policy_of_its_own(name: str) -> None:
    first, second = eviction_factory(name)(), eviction_factory(name)()
    add(first, 1, 2)
    assert len(second) == 0
    assert second.victims(5, 0.0) == []
    assert first.name == name


# ---- lru, fifo, lfu --------------------------------------------------------------------------------


def test_lru_gives_up_what_was_used_longest_ago() -> None:
    policy = LruEviction()
    add(policy, 1, 2, 3)
    hit(policy, 1)
    assert evict(policy, 2) == [2, 3]
    add(policy, 2)
    assert policy.victims(2, 0.0) == [1, 2]


def test_fifo_does_not_care_about_hits_until_a_block_is_gone() -> None:
    policy = FifoEviction()
    add(policy, 1, 2, 3)
    hit(policy, 1, 2, 1)
    assert evict(policy, 1) == [1]
    add(policy, 1)
    assert evict(policy, 3) == [2, 3, 1]


def test_lfu_gives_up_what_was_hit_least_and_of_those_the_oldest() -> None:
    policy = LfuEviction()
    for block, hits in ((1, 2), (2, 0), (3, 1), (4, 0)):
        policy.add(cached(block, hits=hits))
    assert policy.victims(4, 0.0) == [2, 4, 3, 1]
    policy.take(BlockId(2))
    policy.add(cached(2, hits=5))
    assert policy.victims(4, 0.0) == [4, 3, 1, 2]


# ---- cost aware ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goes", "stays"),
    [
        (cached(1, used=10.0), cached(2, used=20.0)),
        (cached(1, costs=1.0), cached(2, costs=2.0)),
        (cached(1, hits=0), cached(2, hits=1)),
        (cached(1, hits=1, costs=1.0), cached(2, hits=0, costs=3.0)),
        (cached(1, used=0.0, costs=1.9), cached(2, used=600.0, costs=1.0)),
        (cached(1, used=600.0, costs=1.0), cached(2, used=0.0, costs=2.1)),
        (cached(1, costs=0.0, hits=1000), cached(2, costs=1e-3)),
    ],
    ids=["older", "cheaper", "hit less", "hit but cheap", "aged a half-life", "not aged enough", "free"],
)
def test_cost_aware_weighs_age_price_and_hits(goes: CachedBlock, stays: CachedBlock) -> None:
    for order in ((goes, stays), (stays, goes)):
        policy = CostAwareEviction()
        for block in order:
            policy.add(block)
        assert policy.victims(1, 1000.0) == [goes.block]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1e5), st.floats(1e-6, 100)), max_size=20),
    st.floats(0, 1e6),
)
def test_cost_aware_ranks_by_expected_saving_whenever_it_is_asked(
    blocks: list[tuple[int, float, float]], later: float
) -> None:
    policy = CostAwareEviction()
    for block, (hits, used, costs) in enumerate(blocks):
        policy.add(cached(block, hits=hits, used=used, costs=costs))
    victims = policy.victims(len(blocks), 1e5)
    assert victims == policy.victims(len(blocks), 1e5 + later)
    savings = []
    for block in victims:
        hits, used, costs = blocks[block]
        savings.append(math.log2((1 + hits) * costs) - (1e5 - used) / policy.half_life_s)
    assert savings == pytest.approx(sorted(savings), abs=1e-6)


# ---- session aware ---------------------------------------------------------------------------------


def test_session_aware_gives_up_who_is_back_last() -> None:
    policy = SessionAwareEviction()
    for block, returns in ((1, 50.0), (2, 400.0), (3, 200.0)):
        policy.add(cached(block, returns=returns))
    assert policy.victims(3, 0.0) == [2, 3, 1]


def test_session_aware_takes_who_gave_no_hint_to_stay_away_as_long_again() -> None:
    policy = SessionAwareEviction()
    policy.add(cached(1, used=100.0))
    policy.add(cached(2, used=150.0))
    policy.add(cached(3, used=100.0, returns=290.0))
    assert policy.victims(3, 200.0) == [1, 3, 2], "away for another 100, 90 and 50 seconds"
    assert policy.victims(3, 180.0) == [3, 1, 2], "110, 80 and 30"


def test_session_aware_without_hints_is_lru() -> None:
    policy, lru = SessionAwareEviction(), LruEviction()
    for block, used in ((1, 5.0), (2, 7.0), (3, 7.0), (4, 9.0)):
        policy.add(cached(block, used=used))
        lru.add(cached(block, used=used))
    for count in range(5):
        assert policy.victims(count, 10.0) == lru.victims(count, 10.0)


def test_session_aware_gives_up_the_longest_overdue_before_all_others() -> None:
    policy = SessionAwareEviction()
    for block, returns in ((1, 1000.0), (2, 650.0), (3, 600.0), (4, 2000.0)):
        policy.add(cached(block, returns=returns))
    assert policy.victims(4, 900.0) == [4, 1, 2, 3], "within the grace nobody is overdue"
    assert policy.victims(4, 901.0) == [3, 4, 1, 2]
    assert policy.victims(4, 960.0) == [3, 2, 4, 1]
    assert policy.victims(1, 960.0) == [3]
    assert policy.victims(3, 5000.0) == [3, 2, 1]


def test_session_aware_believes_the_latest_hint() -> None:
    policy = SessionAwareEviction()
    policy.add(cached(1, returns=500.0))
    policy.add(cached(2, returns=400.0))
    policy.take(BlockId(1))
    policy.add(cached(1, returns=300.0))
    assert policy.victims(2, 0.0) == [2, 1]


# ---- s3fifo ----------------------------------------------------------------------------------------


def came_back(policy: S3FifoEviction, *blocks: int) -> None:
    """Evict these and let their contents return, which puts them into the main queue."""
    add(policy, *blocks)
    for block in blocks:
        policy.forget(BlockId(block))
    add(policy, *blocks)


def test_s3fifo_gives_up_newcomers_first_in_first_out() -> None:
    policy = S3FifoEviction()
    add(policy, 1, 2, 3)
    assert policy.victims(3, 0.0) == [1, 2, 3]


def test_s3fifo_keeps_what_was_hit_behind_what_was_not() -> None:
    policy = S3FifoEviction()
    add(policy, 1, 2, 3)
    hit(policy, 1)
    assert policy.victims(3, 0.0) == [2, 3, 1]


def test_s3fifo_lets_what_it_remembers_come_back_into_the_main_queue() -> None:
    policy = S3FifoEviction()
    came_back(policy, 1)
    add(policy, 2, 3)
    assert policy.victims(3, 0.0) == [2, 3, 1]


def test_s3fifo_knows_a_return_by_its_content_not_by_its_block() -> None:
    policy = S3FifoEviction()
    add(policy, 1)
    policy.forget(BlockId(1))
    policy.add(cached(1, content=50))
    policy.add(cached(2, content=1))
    policy.add(cached(3, content=51))
    assert policy.victims(3, 0.0) == [1, 3, 2]


def test_s3fifo_does_not_remember_for_ever() -> None:
    policy = S3FifoEviction()
    for block in range(40):
        add(policy, block)
        policy.forget(BlockId(block))
    add(policy, 0, 39, 100)
    assert policy.victims(3, 0.0) == [0, 100, 39]


@pytest.mark.parametrize(("num_hits", "num_rounds"), [(0, 0), (1, 1), (3, 3), (10, 3)])
def test_s3fifo_gives_a_round_for_each_hit_up_to_three(num_hits: int, num_rounds: int) -> None:
    policy = S3FifoEviction()
    came_back(policy, 0)
    hit(policy, *[0] * num_hits)
    for block in range(1, num_rounds + 1):
        came_back(policy, block)
        assert evict(policy, 1) == [block]
    came_back(policy, 100)
    assert evict(policy, 1) == [0]


def hits_beside_a_scan(policy: type[EvictionPolicy]) -> int:
    """Three prompts asked for in turn, each among nine that never come again, in a pool of 20 blocks."""
    pool = BlockPool(20, policy)
    num_hits = 0
    for number in range(1000, 2000):
        name = name_of(number // 10 % 3 if number % 10 == 0 else number)
        block = pool.lookup(name)
        if block is None:
            allocated = pool.try_allocate(1)
            assert allocated is not None
            (block,) = allocated
            pool.publish(block, BlockLabel(name, 0))
        else:
            pool.acquire(block)
            num_hits += 1
        pool.release((block,))
    return num_hits


def test_a_scan_flushes_the_other_queues_but_not_that_of_s3fifo() -> None:
    assert hits_beside_a_scan(LruEviction) == 0
    assert hits_beside_a_scan(FifoEviction) == 0
    assert hits_beside_a_scan(S3FifoEviction) > 80


# ---- writing down ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "when_ready", "on_hits", "ahead"),
    [(WriteBack(), False, [], True), (WriteThrough(), True, [], True), (WriteSelective(), False, [1], False)],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_write_policies_copy(
    policy: WritePolicy, when_ready: bool, on_hits: list[int], ahead: bool
) -> None:
    assert policy.stores_ready() is when_ready
    assert [hits for hits in range(1, 6) if policy.stores_hit(hits)] == on_hits
    assert policy.cleans_ahead is ahead


# ---- restoring -------------------------------------------------------------------------------------

UNKNOWN = [
    RestoreSituation(4, load_s=None, compute_s=None, store_s=None),
    RestoreSituation(4, load_s=None, compute_s=1.0),
    RestoreSituation(4, load_s=1.0, compute_s=None),
]
SLOW_LOAD = RestoreSituation(4, load_s=100.0, compute_s=1.0)
SLOW_COMPUTE = RestoreSituation(4, load_s=1.0, compute_s=100.0)


@pytest.mark.parametrize("situation", [*UNKNOWN, SLOW_LOAD, SLOW_COMPUTE])
def test_recompute_and_swap_do_not_look(situation: RestoreSituation) -> None:
    assert Recompute().restore(situation) is RestoreMode.COMPUTE
    assert not Recompute().keeps(situation)
    assert Swap().restore(situation) is RestoreMode.LOAD
    assert Swap().keeps(situation)


@pytest.mark.parametrize("situation", UNKNOWN)
@pytest.mark.parametrize(("policy", "mode"), [(Adaptive(), RestoreMode.LOAD), (Overlap(), RestoreMode.BOTH)])
def test_copies_are_tried_until_both_were_measured(
    policy: RestorePolicy, mode: RestoreMode, situation: RestoreSituation
) -> None:
    assert policy.restore(situation) is mode
    assert policy.keeps(situation)


@pytest.mark.parametrize(
    ("load_s", "mode"),
    [(0.0, RestoreMode.LOAD), (1.9, RestoreMode.LOAD), (2.0, RestoreMode.LOAD), (2.1, RestoreMode.COMPUTE)],
)
def test_adaptive_takes_the_faster_and_loads_at_the_break_even(load_s: float, mode: RestoreMode) -> None:
    assert Adaptive().restore(RestoreSituation(4, load_s=load_s, compute_s=2.0)) is mode


@pytest.mark.parametrize(
    ("store_s", "keeps"), [(0.0, True), (None, True), (0.5, True), (1.0, True), (1.1, False)]
)
def test_adaptive_counts_the_way_out_too_when_it_swaps(store_s: float | None, keeps: bool) -> None:
    situation = RestoreSituation(4, load_s=1.0, compute_s=2.0, store_s=store_s)
    assert Adaptive().keeps(situation) is keeps
    assert Adaptive().restore(situation) is RestoreMode.LOAD


@pytest.mark.parametrize(
    ("load_s", "compute_s", "step_s", "mode"),
    [
        (2.0, 2.0, 0.0, RestoreMode.BOTH),
        (4.0, 2.0, 0.0, RestoreMode.BOTH),
        (200.0, 2.0, 0.0, RestoreMode.COMPUTE),  # no block would come in time
        (0.001, 2.0, 0.0, RestoreMode.LOAD),  # nor is there time to compute one
        (1.0, 2.0, 0.9, RestoreMode.LOAD),  # a step more would cost what it gains
        (2.0, 1.0, 0.9, RestoreMode.COMPUTE),
    ],
)
def test_overlap_does_both_only_where_that_is_faster_than_either(
    load_s: float, compute_s: float, step_s: float, mode: RestoreMode
) -> None:
    situation = RestoreSituation(40, load_s=load_s, compute_s=compute_s, step_s=step_s)
    assert Overlap().restore(situation) is mode
    assert Overlap().keeps(situation) is (mode is not RestoreMode.COMPUTE)


PER_BLOCK = st.floats(1e-6, 10.0)


@given(st.integers(0, 5000), st.floats(0, 10.0), PER_BLOCK, PER_BLOCK)
def test_computing_and_loading_end_together_within_a_block(
    num_blocks: int, step_s: float, compute_s: float, load_s: float
) -> None:
    count = blocks_to_compute(num_blocks, step_s, compute_s, load_s)
    assert 0 <= count <= num_blocks
    slack = 1e-9 * (1 + num_blocks * (load_s + compute_s))
    if count > 0:
        assert step_s + count * compute_s <= (num_blocks - count) * load_s + slack
    if count < num_blocks:
        assert step_s + (count + 1) * compute_s >= (num_blocks - count - 1) * load_s - slack


@pytest.mark.parametrize(
    ("num_blocks", "step_s", "compute_s", "load_s", "count"),
    [
        (0, 0.0, 1.0, 1.0, 0),
        (10, 0.0, 1.0, 1.0, 5),
        (10, 2.0, 1.0, 1.0, 4),
        (10, 0.0, 1.0, 4.0, 8),
        (10, 0.0, 4.0, 1.0, 2),
        (10, 0.0, 1.0, 0.0, 0),
        (10, 0.0, 0.0, 1.0, 10),
        (10, 10.0, 1.0, 1.0, 0),
        (1, 0.0, 1.0, 1.0, 0),
    ],
)
def test_blocks_to_compute(
    num_blocks: int, step_s: float, compute_s: float, load_s: float, count: int
) -> None:
    assert blocks_to_compute(num_blocks, step_s, compute_s, load_s) == count


# ---- by name ---------------------------------------------------------------------------------------

FACTORIES: dict[str, Callable[[str], Callable[[], Any]]] = {
    "eviction": eviction_factory,
    "write": write_factory,
    "restore": restore_factory,
}
BUILT_IN = {"eviction": EVICTION, "write": WRITE, "restore": RESTORE}
KINDS = pytest.mark.parametrize("kind", FACTORIES)
A_CLASS = {"eviction": LruEviction, "write": WriteBack, "restore": Swap}


class Needy(LruEviction):
    """Cannot be made as policies are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


class Nothing:
    """Is none."""


class Broken:
    """Fails when it is made."""

    def __init__(self) -> None:
        raise RuntimeError("no such device")


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of somebody else's, ``their_policies``."""
    module = ModuleType("their_policies")
    vars(module).update(
        Needy=Needy, Nothing=Nothing, Broken=Broken, number=7,
        eviction=LruEviction, write=WriteBack, restore=Swap,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def install(monkeypatch: pytest.MonkeyPatch, kind: str, entries: Iterable[tuple[str, str]]) -> None:
    """Pretend that packages with these entry points are installed."""
    points = EntryPoints(EntryPoint(name, value, f"tidegate.{kind}") for name, value in entries)
    monkeypatch.setattr(importlib.metadata, "entry_points", points.select)


@KINDS
def test_built_in_policies_are_found_by_the_name_they_have(kind: str) -> None:
    for name in BUILT_IN[kind]:
        assert FACTORIES[kind](name)().name == name


@KINDS
@pytest.mark.usefixtures("policies")
def test_a_class_is_found_in_its_module(kind: str) -> None:
    assert FACTORIES[kind](f"their_policies:{kind}") is A_CLASS[kind]


@KINDS
@pytest.mark.usefixtures("policies")
def test_a_class_is_found_by_its_entry_point(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, kind, [("theirs", f"their_policies:{kind}")])
    assert FACTORIES[kind]("theirs") is A_CLASS[kind]


@pytest.mark.usefixtures("policies")
def test_an_entry_point_counts_in_its_own_group_only(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "write", [("theirs", "their_policies:write")])
    with pytest.raises(PolicyError, match="There is no restore policy 'theirs'"):
        restore_factory("theirs")


@pytest.mark.usefixtures("policies")
def test_nobody_takes_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "eviction", [("lfu", "their_policies:eviction")])
    assert eviction_factory("lfu") is LfuEviction


@KINDS
def test_an_unknown_name_lists_what_there_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, kind, [(letter, f"m:{letter}") for letter in "zfbxa"])
    with pytest.raises(PolicyError) as refused:
        FACTORIES[kind]("nope")
    known = ", ".join([*BUILT_IN[kind], *"abfxz"])
    assert str(refused.value) == (
        f"There is no {kind} policy 'nope'; there are {known}, or name a module:Class."
    )


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("no_such_module:X", "{spec} cannot be imported: No module named 'no_such_module'."),
        ("their_policies:X", "{spec} cannot be imported: module 'their_policies' has no attribute 'X'."),
        (":X", "{spec} cannot be imported: Empty module name."),
        ("broken", "{spec} cannot be loaded: No module named 'no_such_module'."),
        ("their_policies:Broken", "{spec} cannot be made without arguments: no such device."),
        (
            "their_policies:Needy",
            "{spec} cannot be made without arguments: "
            "Needy.__init__() missing 1 required positional argument: 'size'.",
        ),
    ],
)
def test_a_policy_that_cannot_be_had_is_refused(
    spec: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "eviction", [("broken", "no_such_module:X")])
    with pytest.raises(PolicyError) as refused:
        eviction_factory(spec)
    assert str(refused.value) == "The eviction policy " + sentence.format(spec=spec)


@KINDS
@pytest.mark.usefixtures("policies")
def test_what_is_not_a_class_is_refused(kind: str) -> None:
    with pytest.raises(PolicyError) as refused:
        FACTORIES[kind]("their_policies:number")
    assert str(refused.value) == f"their_policies:number is no {kind} policy: it is not a class."


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("eviction", "name, add, take, forget, victims"),
        ("write", "name, cleans_ahead, stores_ready, stores_hit"),
        ("restore", "name, restore, keeps"),
    ],
)
def test_a_class_that_lacks_members_is_refused(kind: str, missing: str) -> None:
    with pytest.raises(PolicyError) as refused:
        FACTORIES[kind]("their_policies:Nothing")
    assert str(refused.value).startswith(f"their_policies:Nothing is no {kind} policy: it has no {missing}")


def test_a_policy_of_another_kind_is_refused() -> None:
    with pytest.raises(PolicyError, match="is no write policy: it has no cleans_ahead, stores_ready"):
        write_factory("tiering.policies.eviction:LruEviction")


def test_an_eviction_policy_that_cannot_count_is_refused(policies: ModuleType) -> None:
    members = {"name": "mute", "add": None, "take": None, "forget": None, "victims": None}
    vars(policies)["Mute"] = type("Mute", (), members)
    with pytest.raises(PolicyError, match="is no eviction policy"):
        eviction_factory("their_policies:Mute")
