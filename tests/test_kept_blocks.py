"""What requests ask to keep, in a whole engine: under every policy, within a quota, down to host only."""

from __future__ import annotations

import pytest

from engine.messages import Retention
from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.outlook import Keep, Outlook
from tiering.policies.registry import EVICTION, WRITE
from tiering.types import Tier

HOUR = Retention(keep_s=3600.0)
IN_MEMORY = Retention(keep_s=3600.0, lowest="host")


def prompt(number: int, length: int = 17) -> list[int]:
    """Shares no block with another number's."""
    return [number, *range(length - 1)]


def crowd(engine: SmallEngine, count: int = 12) -> None:
    for number in range(count):
        engine.add(f"crowd{engine._num_steps}-{number}", prompt(100 + number + engine._num_steps), 1)
        engine.run()


def cached(engine: SmallEngine, name: str, tokens: list[int]) -> int:
    """How many tokens of a prompt are found, on whatever tier."""
    engine.add(name, tokens, max_tokens=1)
    engine.run()
    assert engine.tokens[name] == expected_tokens(tokens, 1)
    return engine.cached[name]


@pytest.mark.parametrize("eviction", EVICTION)
def test_what_is_kept_outlives_what_is_not_under_every_policy(eviction: str) -> None:
    engine = SmallEngine(num_blocks=16, eviction=eviction)
    engine.add("kept", prompt(1), max_tokens=1, retention=HOUR)
    engine.add("plain", prompt(2), max_tokens=1)
    engine.run()
    assert engine.core.stats().tiers["device"].blocks_kept == 4
    crowd(engine)
    assert cached(engine, "kept again", prompt(1)) == 16
    assert cached(engine, "plain again", prompt(2)) == 0


def test_what_was_kept_for_its_time_goes_like_any_other() -> None:
    engine = SmallEngine(num_blocks=16)
    engine.add("kept", prompt(1), max_tokens=1, retention=Retention(keep_s=100.0))
    engine.run()
    engine._num_steps += 101
    crowd(engine)
    assert cached(engine, "again", prompt(1)) == 0
    assert engine.core.stats().tiers["device"].blocks_kept == 0


def test_each_use_keeps_a_block_for_its_time_again() -> None:
    engine = SmallEngine(num_blocks=16)
    engine.add("kept", prompt(1), max_tokens=1, retention=Retention(keep_s=100.0))
    engine.run()
    for turn in range(3):
        engine._num_steps += 60
        crowd(engine, 3)
        assert cached(engine, f"again{turn}", prompt(1)) == 16


def test_kept_blocks_keep_nobody_from_running() -> None:
    engine = SmallEngine(num_blocks=16)
    for number, keep_s in enumerate((500.0, 100.0, 900.0)):
        engine.add(f"kept{number}", prompt(number), 1, retention=Retention(keep_s=keep_s), kv_quota=1.0)
        engine.run()
    engine.add("large", prompt(9, 49), max_tokens=1, retention=HOUR, kv_quota=1.0)
    engine.run()
    assert engine.tokens["large"] == expected_tokens(prompt(9, 49), 1)
    assert [cached(engine, f"again{number}", prompt(number, 5)) for number in range(3)] == [0, 0, 4]


def test_the_quota_bounds_what_a_tenant_keeps_of_each_tier() -> None:
    engine = SmallEngine(num_blocks=16, host_blocks=40, write="through")
    for number in range(6):
        engine.add(f"a{number}", prompt(number), 1, tenant="a", retention=HOUR, kv_quota=0.5)
        engine.run()
    engine.add("b", prompt(50), 1, tenant="b", retention=HOUR, kv_quota=0.5)
    engine.run()
    stats = engine.core.stats().tiers
    assert (stats["device"].blocks_kept, stats["host"].blocks_kept) == (8 + 4, 20 + 4)
    owners = [kept.keep.owner for kept in engine.tiers.device.ranking.kept().values()]
    assert (owners.count("a"), owners.count("b")) == (8, 4)


@pytest.mark.parametrize("write", WRITE)
def test_what_stays_in_memory_is_never_written_to_disk(write: str) -> None:
    engine = SmallEngine(num_blocks=12, host_blocks=16, disk_blocks=200, write=write)
    engine.add("private", prompt(1), max_tokens=6, retention=IN_MEMORY, kv_quota=1.0)
    engine.run()
    private = {name for name, _ in engine.tiers.device.named_blocks()}
    assert private
    for number in range(8):
        crowd(engine, 4)
        cached(engine, f"hit{number}", prompt(1))  # also a use without a word about it
    engine.core.close(1000.0)
    on_disk = {label.name for label in engine.memory.disk_table.values()}
    assert on_disk or write == "selective"
    assert not on_disk & private


def test_what_stays_in_memory_does_so_though_its_name_is_lost_while_it_is_copied_to_host() -> None:
    """As by a copy of the same block that turns out to be corrupt."""
    engine = SmallEngine(num_blocks=12, host_blocks=16, disk_blocks=200, write="through")
    engine.link.hold()
    engine.add("private", prompt(1), max_tokens=1, retention=IN_MEMORY, kv_quota=1.0)
    for _ in range(4):
        engine.step()
    private = {name for name, _ in engine.tiers.device.named_blocks()}
    assert any(job.label is not None and job.label.name in private for job in engine.tiers.jobs())
    for name in private:
        engine.tiers.device.forget(name)
    engine.link.release()
    engine.run()
    assert private & {name for name, _ in engine.tiers.pool(Tier.HOST).named_blocks()}
    for _ in range(8):
        crowd(engine, 4)
    engine.core.close(1000.0)
    on_disk = {label.name for label in engine.memory.disk_table.values()}
    assert on_disk and not on_disk & private


def test_what_stays_in_memory_is_on_host_for_its_time() -> None:
    engine = SmallEngine(num_blocks=12, host_blocks=24, disk_blocks=200, write="through")
    engine.add("private", prompt(1), max_tokens=1, retention=IN_MEMORY, session="s", kv_quota=0.25)
    engine.run()
    for _ in range(5):
        crowd(engine, 4)
    assert engine.cells("s") == "dddh"  # a quarter of the device is three blocks
    for name, _ in list(engine.tiers.device.named_blocks()):
        engine.tiers.device.forget(name)
    assert engine.cells("s") == "hhhh"
    assert cached(engine, "again", prompt(1)) == 16


def test_a_copy_on_another_tier_is_kept_as_long_and_renewed_together() -> None:
    engine = SmallEngine(num_blocks=16, host_blocks=40, write="through")
    engine.add("kept", prompt(1), 1, tenant="a", retention=Retention(keep_s=50.0), kv_quota=0.5)
    engine.run()
    engine._num_steps += 30
    cached(engine, "again", prompt(1))
    expected = Outlook(keep=Keep("a", 50.0, 0.5))
    for tier in (Tier.DEVICE, Tier.HOST):
        pool = engine.tiers.pool(tier)
        uses = [pool.use_of(block) for block in pool.ranking.kept()]
        assert {(use.outlook, use.last_used) for use in uses if use is not None} == {
            (expected, float(engine._num_steps))
        }


@pytest.mark.parametrize(
    "fields",
    [
        {"retention": Retention(keep_s=-1.0)},
        {"retention": Retention(keep_s=float("nan"))},
        {"retention": Retention(keep_s=float("inf"))},
        {"expected_return_s": float("nan")},
        {"kv_quota": 1.5},
        {"kv_quota": float("nan")},
    ],
)
def test_a_future_that_cannot_be_reckoned_with_is_refused(fields: dict[str, object]) -> None:
    engine = SmallEngine()
    engine.add("r", prompt(1), **fields)  # type: ignore[arg-type]
    engine.step()
    assert "keep_s" in engine.errors["r"]
