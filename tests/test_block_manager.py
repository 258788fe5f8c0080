"""Block pool, tables, names and the recount that watches over them."""

from __future__ import annotations

import pytest

from tiering import integrity
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.hashing import ROOT, BlockNamer, derive_salt
from tiering.policies.eviction import LruEviction
from tiering.residency import TRANSITIONS, next_state
from tiering.tables import Admission, Member
from tiering.tiers import Tiers
from tiering.types import BlockEvent, BlockHash, BlockId, BlockLabel, BlockState, IllegalTransitionError

NAMES = [BlockHash(bytes([i]) * 16) for i in range(32)]


def manager(num_blocks: int = 8) -> BlockManager:
    return BlockManager(Tiers(BlockPool(num_blocks, LruEviction)), block_size=4)


def admit(blocks: BlockManager, name: str, tokens: int, names: list[BlockHash], keep: int = 0) -> int | None:
    admission = blocks.try_admit([Member(name, names, tokens, tokens)], keep_available=keep)
    return admission.num_cached_tokens[0] if isinstance(admission, Admission) else None


def test_admission_is_all_or_nothing() -> None:
    blocks = manager(4)
    assert admit(blocks, "a", 9, NAMES[:2]) == 0
    assert admit(blocks, "b", 5, NAMES[8:9]) is None
    assert blocks.usage().available == 1
    assert admit(blocks, "b", 4, NAMES[8:9]) == 0
    assert integrity.check(blocks) == []


def test_keep_available_leaves_room() -> None:
    blocks = manager(4)
    assert admit(blocks, "a", 9, [], keep=2) is None
    assert admit(blocks, "a", 9, [], keep=1) == 0


def test_capacity_beyond_the_known_tokens() -> None:
    blocks = manager(8)
    blocks.try_admit([Member("a", [], 3, 20)], keep_available=0)
    assert len(blocks.block_table("a")) == 5


@pytest.mark.parametrize(("tokens", "hit"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a_hit_is_capped_at_the_last_full_block_before_the_last_token(tokens: int, hit: int) -> None:
    blocks = manager(16)
    admit(blocks, "a", 16, NAMES[:4])
    blocks.publish("a", NAMES[:4], 4)
    assert admit(blocks, "b", tokens, NAMES[: tokens // 4]) == hit
    assert integrity.check(blocks) == []


def test_a_hit_stops_at_the_first_missing_block() -> None:
    blocks = manager(16)
    admit(blocks, "a", 16, NAMES[:4])
    blocks.publish("a", NAMES[:4], 2)
    assert admit(blocks, "b", 16, NAMES[:4]) == 8


def test_hits_on_cached_blocks_count_against_what_is_available() -> None:
    blocks = manager(4)
    admit(blocks, "a", 16, NAMES[:4])
    blocks.publish("a", NAMES[:4], 4)
    blocks.release("a")
    assert blocks.usage().cached == 4
    assert admit(blocks, "b", 17, NAMES[:4]) is None
    assert admit(blocks, "b", 16, NAMES[:4]) == 12
    assert integrity.check(blocks) == []


def test_the_leaf_of_the_oldest_sequence_is_evicted_first() -> None:
    blocks = manager(4)
    admit(blocks, "a", 8, NAMES[:2])
    blocks.publish("a", NAMES[:2], 2)
    blocks.release("a")
    admit(blocks, "b", 8, NAMES[10:12])
    blocks.publish("b", NAMES[10:12], 2)
    blocks.release("b")
    admit(blocks, "c", 3, [])
    assert blocks.pool.lookup(NAMES[1]) is None
    assert all(blocks.pool.lookup(name) is not None for name in (NAMES[0], NAMES[10], NAMES[11]))
    assert blocks.pool.evictions_total == 1


def test_use_makes_a_block_recent() -> None:
    blocks = manager(4)
    for name, names in (("a", NAMES[:2]), ("b", NAMES[10:12])):
        admit(blocks, name, 8, names)
        blocks.publish(name, names, 2)
        blocks.release(name)
    admit(blocks, "a2", 8, NAMES[:2])
    blocks.release("a2")
    admit(blocks, "c", 8, [])
    assert blocks.pool.lookup(NAMES[0]) is not None


def test_two_sequences_that_fill_the_same_content_end_up_sharing_it() -> None:
    blocks = manager()
    for name in ("a", "b"):
        admit(blocks, name, 9, NAMES[:2])
    for name in ("a", "b"):
        blocks.publish(name, NAMES[:2], 2)
    assert blocks.block_table("a")[:2] == blocks.block_table("b")[:2]
    assert blocks.usage().in_use == 4
    assert integrity.check(blocks) == []
    blocks.release("a")
    assert integrity.check(blocks) == []
    blocks.release("b")
    assert blocks.usage().cached == 2
    assert blocks.usage().free == 6
    assert integrity.check(blocks) == []


def test_discarded_blocks_are_found_by_nobody_but_shared_ones_stay() -> None:
    blocks = manager(12)
    admit(blocks, "a", 12, NAMES[:3])
    blocks.publish("a", NAMES[:3], 3)
    admit(blocks, "b", 5, NAMES[:1])
    blocks.discard("a", NAMES[:3])
    assert blocks.pool.lookup(NAMES[0]) == blocks.block_table("b")[0]
    assert blocks.pool.lookup(NAMES[1]) is None
    assert blocks.pool.evictions_total == 0
    assert integrity.check(blocks) == []


def test_growth_is_by_need_and_all_or_nothing() -> None:
    blocks = manager(3)
    admit(blocks, "a", 4, [])
    assert blocks.try_grow([("a", 4)])
    assert len(blocks.block_table("a")) == 1
    assert not blocks.try_grow([("a", 17)])
    assert len(blocks.block_table("a")) == 1
    assert blocks.try_grow([("a", 12)])
    assert len(blocks.block_table("a")) == 3


def test_a_double_release_is_caught() -> None:
    pool = BlockPool(2, LruEviction)
    taken = pool.try_allocate(1)
    assert taken is not None
    pool.release(taken)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(taken)


@pytest.mark.parametrize("state", BlockState)
@pytest.mark.parametrize("event", BlockEvent)
def test_block_life_is_the_table(state: BlockState, event: BlockEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            next_state(state, event)


# ---- recount -------------------------------------------------------------------------------------


def corrupt_ref_count(blocks: BlockManager) -> None:
    blocks.pool._ref_count[blocks.block_table("a")[0]] += 1


def corrupt_free_list(blocks: BlockManager) -> None:
    blocks.pool._free.append(blocks.pool._free[0])


def lose_a_block(blocks: BlockManager) -> None:
    blocks.pool._free.pop()


def corrupt_name(blocks: BlockManager) -> None:
    blocks.pool._label[blocks.block_table("a")[0]] = BlockLabel(NAMES[20], 0)


def forget_name(blocks: BlockManager) -> None:
    del blocks.pool._index[NAMES[0]]


def share_an_unfinished_block(blocks: BlockManager) -> None:
    block = blocks.block_table("a")[-1]
    blocks.tables()["b"].blocks.append(block)
    blocks.pool._ref_count[block] += 1


def repeat_a_block(blocks: BlockManager) -> None:
    blocks.tables()["a"].blocks.append(BlockId(blocks.block_table("a")[0]))


@pytest.mark.parametrize(
    "damage",
    [
        corrupt_ref_count,
        corrupt_free_list,
        lose_a_block,
        corrupt_name,
        forget_name,
        share_an_unfinished_block,
        repeat_a_block,
    ],
)
def test_the_recount_notices_damage(damage: object) -> None:
    blocks = manager()
    admit(blocks, "a", 10, NAMES[:2])
    blocks.publish("a", NAMES[:2], 2)
    admit(blocks, "b", 3, [])
    assert integrity.check(blocks) == []
    assert callable(damage)
    damage(blocks)
    assert integrity.check(blocks) != []


# ---- names ---------------------------------------------------------------------------------------


def test_a_name_depends_on_salt_parent_and_tokens() -> None:
    salts = [derive_salt(b"secret", part) for part in (b"a", b"b")]
    tokens = [1, 2, 3, 4]
    base = BlockNamer(salts[0], 4).name(ROOT, tokens)
    assert BlockNamer(salts[0], 4).name(ROOT, tokens) == base
    assert len(base) == 16
    others = {
        BlockNamer(salts[1], 4).name(ROOT, tokens),
        BlockNamer(salts[0], 4).name(base, tokens),
        BlockNamer(salts[0], 4).name(ROOT, [1, 2, 4, 3]),
    }
    assert len(others | {base}) == 4


def test_salt_parts_are_not_joined_blindly() -> None:
    assert derive_salt(b"s", b"ab", b"c") != derive_salt(b"s", b"a", b"bc")
    assert derive_salt(b"s", b"a") != derive_salt(b"t", b"a")
