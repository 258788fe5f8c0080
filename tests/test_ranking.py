"""What is kept goes last, whatever the policy; and a policy sees of it what it would see without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_policies import COMMANDS, NUM_BLOCKS, cached
from tiering.outlook import NO_OUTLOOK, BlockUse, Keep, Outlook
from tiering.policies.eviction import CachedBlock, LruEviction, S3FifoEviction
from tiering.policies.ranking import Ranking
from tiering.policies.registry import EVICTION
from tiering.types import BlockId

KEEPS = (None, Keep("a", 10.0, 0.25), Keep("a", 400.0, 0.5), Keep("b", 100.0, 1.0))


def add(ranking: Ranking, block: int, keep: Keep | None = None, used: float = 0.0, depth: int = 0) -> None:
    ranking.add(cached(block, used=used, depth=depth), keep, NUM_BLOCKS, is_dirty=block % 2 == 1)


@pytest.mark.parametrize("name", EVICTION)
def test_what_is_kept_goes_last_and_of_that_what_ends_soonest(name: str) -> None:
    ranking = Ranking(EVICTION[name])
    add(ranking, 0, Keep("a", 30.0, 1.0))
    add(ranking, 1, Keep("b", 20.0, 1.0))
    add(ranking, 2, used=5.0)
    add(ranking, 3, used=6.0)
    assert ranking.victims(4, 10.0) == [2, 3, 1, 0]
    assert ranking.victims(1, 10.0) == [2]
    assert ranking.dirty_victims(4, 10.0) == [3, 1]
    assert ranking.num_kept(10.0) == 2


def test_a_time_that_is_over_gives_the_block_to_the_policy() -> None:
    ranking = Ranking(LruEviction)
    add(ranking, 0, Keep("a", 20.0, 1.0), used=0.0)
    add(ranking, 2, used=10.0)
    assert ranking.victims(2, 19.9) == [2, 0]
    assert ranking.victims(2, 20.0) == [0, 2]
    assert ranking.num_kept(20.0) == 0


def test_beyond_the_quota_the_oldest_of_that_owner_are_kept_no_more() -> None:
    ranking = Ranking(LruEviction)
    quota = Keep("a", 100.0, 0.25)  # three of twelve
    for block in range(4):
        add(ranking, block, quota, used=float(block))
    add(ranking, 4, Keep("b", 50.0, 0.25), used=5.0)
    add(ranking, 5, used=6.0)
    assert ranking.num_kept(6.0) == 4
    assert ranking.victims(6, 6.0) == [0, 5, 4, 1, 2, 3]
    add(ranking, 6, Keep("c", 100.0, 0.0))
    assert 6 not in ranking.kept()


def test_of_one_history_over_the_quota_the_end_is_kept_no_more() -> None:
    ranking = Ranking(LruEviction)
    for depth in reversed(range(5)):
        add(ranking, depth, Keep("a", 100.0, 0.25), used=7.0, depth=depth)
    assert ranking.kept().keys() == {0, 1, 2}
    assert ranking.victims(5, 8.0) == [4, 3, 2, 1, 0]


def test_a_policy_counts_the_uses_of_what_is_kept() -> None:
    """s3fifo gives another round to what was hit, also to what nobody could have evicted meanwhile."""
    ranking = Ranking(S3FifoEviction)
    for block in (0, 2):
        add(ranking, block, Keep("a", 5.0, 1.0) if block == 0 else None)
    ranking.take(BlockId(0))
    add(ranking, 0)
    assert ranking.victims(1, 9.0) == [2]


class _Watched(LruEviction):
    """Checks that it is told of every block what the protocol says, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[BlockId] = set()

    def add(self, cached: CachedBlock) -> None:
        assert cached.block not in self.known
        self.known.add(cached.block)
        super().add(cached)

    def take(self, block: BlockId) -> None:
        self.known.remove(block)
        super().take(block)

    def forget(self, block: BlockId) -> None:
        self.known.remove(block)
        super().forget(block)


@given(st.lists(st.tuples(COMMANDS, st.sampled_from(KEEPS), st.booleans()), max_size=60))
def test_any_life_adds_up(life: list[tuple[tuple[str, int, int, float], Keep | None, bool]]) -> None:
    for factory in (_Watched, *EVICTION.values()):
        ranking, evictable, now = Ranking(factory), set[BlockId](), 0.0
        for (command, number, detail, seconds), keep, is_dirty in life:
            now, block = now + seconds, BlockId(number)
            if command == "add" and block not in evictable:
                ranking.add(
                    cached(number, used=now, depth=detail, hits=detail), keep, NUM_BLOCKS, is_dirty=is_dirty
                )
                evictable.add(block)
            elif command == "take" and block in evictable:
                ranking.take(block)
                evictable.remove(block)
            elif command == "forget":
                for victim in ranking.victims(detail, now):
                    ranking.forget(victim)
                    evictable.remove(victim)
            elif command == "victims" and evictable:
                ranking.note_clean(min(evictable))
            check(ranking, evictable, now)


def check(ranking: Ranking, evictable: set[BlockId], now: float) -> None:
    assert ranking.adds_up()
    assert len(ranking) == len(evictable)
    assert set(ranking) == evictable == set(ranking.victims(NUM_BLOCKS + 1, now))
    assert set(ranking.dirty_victims(NUM_BLOCKS + 1, now)) == ranking.dirty() <= evictable
    order = ranking.victims(NUM_BLOCKS + 1, now)
    num_kept = ranking.num_kept(now)
    assert set(order[len(order) - num_kept :]) == ranking.kept().keys()
    for owner in ("a", "b"):
        kept = [entry.keep.quota for entry in ranking.kept().values() if entry.keep.owner == owner]
        assert len(kept) <= max(kept, default=0.0) * NUM_BLOCKS


def test_a_later_use_renews_a_keep_but_does_not_revive_one() -> None:
    use = BlockUse(0.0, Outlook(keep=Keep("a", 10.0, 0.5)), was_stored=False)
    use.renew(5.0)
    assert use.kept_until == 15.0
    use.renew(15.0)
    assert use.kept_until is None
    use.renew(16.0, Outlook(keep=Keep("a", 3.0, 0.5)))
    assert use.kept_until == 19.0


def test_of_two_outlooks_the_longer_keep_the_later_hint_and_the_stricter_limit_stand() -> None:
    long, short = Keep("a", 100.0, 0.5), Keep("a", 5.0, 0.5)
    first = Outlook(expected_return_at=3.0, keep=long, stays_off_disk=True)
    assert first.joined(Outlook(expected_return_at=9.0, keep=short)) == Outlook(9.0, long, True)
    assert Outlook(keep=short).joined(Outlook(keep=long)).keep is long
    assert first.joined(NO_OUTLOOK) == first
    assert NO_OUTLOOK.joined(first) is first
