"""When the head of a line is looked at anew: as soon as it could find room, and not before.

That what is remembered is right all tests of a ``SmallEngine`` see to.
"""

from __future__ import annotations

import pytest

from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.planner import RestorePlanner
from tiering.policies.eviction import LruEviction
from tiering.tables import Admission, Member
from tiering.tiers import Tiers
from tiering.types import BlockHash

NAMES = [BlockHash(bytes([i]) * 16) for i in range(8)]


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many names there were to match, each time that somebody did."""
    found: list[int] = []
    match = RestorePlanner.match

    def watched(planner: RestorePlanner, names: list[BlockHash], limit: int, *, below_device: bool) -> object:
        found.append(limit)
        return match(planner, names, limit, below_device=below_device)

    monkeypatch.setattr(RestorePlanner, "match", watched)
    return found


def asks(blocks: BlockManager, keep_available: int = 0) -> bool:
    """Whether a sequence of 17 tokens gets its blocks."""
    member = Member("head", NAMES[:4], 17, 17)
    return isinstance(blocks.try_admit([member], keep_available=keep_available), Admission)


def full_house(num_free: int) -> BlockManager:
    """Of eight blocks all but so many are held by sequences of one block each."""
    blocks = BlockManager(Tiers(BlockPool(8, LruEviction)), block_size=4)
    for number in range(8 - num_free):
        blocks.try_admit([Member(f"r{number}", NAMES[number : number + 1], 4, 4)], keep_available=0)
    return blocks


def test_who_lacks_three_blocks_is_looked_at_again_when_three_have_become_available(
    lookups: list[int],
) -> None:
    blocks = full_house(num_free=2)
    lookups.clear()
    assert not any(asks(blocks) for _ in range(10))
    assert len(lookups) == 1
    for number in range(2):
        blocks.release(f"r{number}")
        assert not asks(blocks)
    assert len(lookups) == 1
    blocks.release("r2")
    assert asks(blocks)
    assert len(lookups) == 2


def test_or_when_the_name_is_there_that_was_missing(lookups: list[int]) -> None:
    blocks = full_house(num_free=4)
    assert not asks(blocks)
    lookups.clear()
    blocks.publish("r0", NAMES[:1], 1)
    assert asks(blocks)
    assert len(lookups) == 1
    assert blocks.block_table("head")[0] == blocks.pool.lookup(NAMES[0])


def test_another_question_is_another_answer(lookups: list[int]) -> None:
    blocks = full_house(num_free=5)
    lookups.clear()
    assert not asks(blocks, keep_available=1)
    assert asks(blocks)
    assert len(lookups) == 2


def test_what_is_forgotten_is_looked_for_anew(lookups: list[int]) -> None:
    blocks = full_house(num_free=2)
    lookups.clear()
    assert not asks(blocks)
    blocks.tiers.forget(NAMES[7])
    assert not asks(blocks)
    assert len(lookups) == 2


def test_who_finds_a_block_that_a_copy_holds_is_looked_at_again_when_another_takes_it() -> None:
    blocks = BlockManager(Tiers(BlockPool(8, LruEviction)), block_size=4)
    blocks.try_admit([Member("other", NAMES[:1], 5, 5)], keep_available=0)
    blocks.publish("other", NAMES, 1)
    blocks.release("other")
    found = blocks.pool.lookup(NAMES[0])
    assert found is not None
    blocks.pool.begin_copy_out(found)
    assert not asks(blocks, keep_available=3)
    blocks.pool.acquire(found)
    assert asks(blocks, keep_available=3)
