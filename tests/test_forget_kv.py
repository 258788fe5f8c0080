"""KV that is to be forgotten: on every tier, whoever has it, whatever is on its way, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.config import DiskTier, EngineConfig, MemorySize
from engine.messages import AddRequest, SamplingParams, TokenDelta
from tests.support import reference
from tests.support.fake_kv import expected_tokens
from tests.support.kv_room import kv_bytes
from tests.support.small_engine import SmallEngine
from tests.test_engine_client import Collector
from tests.test_greedy_equivalence import FILLER

HISTORY = list(range(17))


def tiered(**options: int | str) -> SmallEngine:
    return SmallEngine(**{"host_blocks": 16, "disk_blocks": 64, "write": "through", **options})  # type: ignore[arg-type]


def everywhere(engine: SmallEngine) -> int:
    """How many blocks can be found, on whatever tier."""
    return sum(1 for _, pool in engine.tiers.pools() for _ in pool.named_blocks())


def test_every_tier_forgets_and_a_session_shows_it() -> None:
    engine = tiered()
    engine.add("r", HISTORY, max_tokens=1, session="s")
    engine.run()
    assert everywhere(engine) == 3 * 4
    assert len(engine.memory.disk_table) == 4
    engine.forget(HISTORY)
    engine.step()
    assert everywhere(engine) == 0
    assert engine.memory.disk_table == {}
    assert engine.cells("s") == "----"
    engine.assert_idle()


@pytest.mark.parametrize(
    ("from_token", "num_left"), [(-3, 0), (0, 0), (1, 0), (4, 1), (15, 3), (16, 4), (99, 4)]
)
def test_only_what_covers_a_token_from_there_on(from_token: int, num_left: int) -> None:
    engine = tiered()
    engine.add("r", HISTORY, max_tokens=1, session="s")
    engine.run()
    engine.forget(HISTORY, from_token)
    assert engine.cells("s") == "d" * num_left + "-" * (4 - num_left)
    engine.add("again", HISTORY, max_tokens=1)
    engine.run()
    assert engine.cached["again"] == 4 * num_left


def test_another_tenants_blocks_are_not_touched() -> None:
    engine = tiered()
    for salt in (b"a", b"b"):
        engine.add(f"r{salt!r}", HISTORY, max_tokens=1, salt=salt)
    engine.run()
    engine.forget(HISTORY, salt=b"a")
    for salt, cached in ((b"a", 0), (b"b", 16)):
        engine.add(f"again{salt!r}", HISTORY, max_tokens=1, salt=salt)
        engine.run()
        assert engine.cached[f"again{salt!r}"] == cached


def test_a_running_request_keeps_what_it_uses_and_frees_it_at_its_end() -> None:
    engine = tiered()
    engine.add("r", HISTORY, max_tokens=12)
    for _ in range(6):
        engine.step()
    history = [*HISTORY, *engine.tokens["r"]]
    engine.forget(history)
    engine.add("other", HISTORY, max_tokens=1)
    engine.step()
    assert engine.cached.get("other", 0) == 0
    engine.run()
    assert engine.tokens["r"] == expected_tokens(HISTORY, 12)
    engine.assert_idle()


def test_what_is_on_its_way_to_disk_is_not_found_there() -> None:
    engine = tiered()
    engine.disk.hold()
    engine.add("r", HISTORY, max_tokens=1)
    for _ in range(12):
        engine.step()
    disk = engine.tiers.disk
    assert disk is not None
    assert list(disk.arriving_blocks())
    engine.forget(HISTORY)
    engine.disk.release()
    engine.run()
    assert everywhere(engine) == 0
    assert engine.memory.disk_table == {}
    engine.assert_idle()


@pytest.mark.parametrize("late", ["disk", "link"])
def test_what_is_on_its_way_up_is_computed_instead(late: str) -> None:
    engine = tiered()
    engine.add("r", HISTORY, max_tokens=1)
    engine.run()
    for tier in ("device", "host"):
        for name, _ in list(getattr(engine.tiers, tier).named_blocks()):
            getattr(engine.tiers, tier).forget(name)
    mover = engine.disk if late == "disk" else engine.link
    mover.hold()
    engine.add("again", HISTORY, max_tokens=3)
    for _ in range(4):
        engine.step()
    assert engine.scheduler.num_restoring
    engine.forget(HISTORY)
    mover.release()
    engine.run()
    assert engine.tokens["again"] == expected_tokens(HISTORY, 3)
    engine.assert_idle()


def test_a_block_that_made_room_on_disk_is_not_found_there_either() -> None:
    """Its record may be whole for long after: nothing must lead to it."""
    engine = tiered(disk_blocks=4)
    engine.add("r", HISTORY, max_tokens=1)
    engine.run()
    engine.add("other", [50, *HISTORY], max_tokens=1)
    engine.run()
    disk = engine.tiers.disk
    assert disk is not None
    engine.forget(HISTORY)
    engine.step()
    found = {name for name, _ in disk.named_blocks()}
    assert {label.name for label in engine.memory.disk_table.values()} == found


# ---- the real model, host and disk -----------------------------------------------------------------


@asynccontextmanager
async def real_engine(directory: Path) -> AsyncIterator[EngineClient]:
    config = EngineConfig(
        model="",
        device="cpu",
        device_kv=MemorySize(num_bytes=kv_bytes(16 * 2**20)),
        host_kv=MemorySize(num_bytes=kv_bytes(48 * 2**20)),
        disk_kv=DiskTier(str(directory), MemorySize(num_bytes=kv_bytes(128 * 2**20))),
        max_model_len=512,
        deterministic=True,
        write_policy="through",
        restore="swap",
    )
    client = await EngineClient.start(config)
    try:
        yield client
    finally:
        await client.close()


async def generate(
    client: EngineClient, name: str, prompt: Sequence[int], max_tokens: int, session: str = ""
) -> TokenDelta:
    """All of an answer, in one delta."""
    sink = Collector()
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    client.submit(
        AddRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling, session=session), sink
    )
    await asyncio.wait_for(sink.done.wait(), 60)
    assert sink.error is None
    return TokenDelta(name, tuple(sink.tokens), num_cached_tokens=sink.deltas[-1].num_cached_tokens)


async def cells_when_idle(client: EngineClient, session: str) -> str:
    """Where a session's blocks are when no copy is under way any more."""
    async with asyncio.timeout(30):
        while True:
            report = await client.check_integrity()
            assert report.problems == ()
            if not report.stats.blocks_in_use:
                return (await client.describe_sessions([session])).sessions[0].cells
            await asyncio.sleep(0.02)


def hits(client: EngineClient, tier: str) -> int:
    """So far; an engine that has not told of a step yet has had none."""
    stats = client.stats.tiers.get(tier)
    return 0 if stats is None else stats.hit_tokens_total


@pytest.mark.timeout(300)
async def test_a_restart_does_not_find_it_and_a_session_is_made_ready_ahead_of_its_turn(
    tmp_path: Path,
) -> None:
    """Two sessions, of which one loses all from token 64 on; then each is made ready (``max_tokens`` 0)."""
    encode = reference.tokenizer().encode
    lost, left = (list(encode(start + FILLER * 3))[:240] for start in ("One. ", "Two. "))
    async with real_engine(tmp_path / "kv") as client:
        for name, prompt in (("lost", lost), ("left", left)):
            await generate(client, name, prompt, 1, name)
        assert set(await cells_when_idle(client, "lost")) == {"d"}
        client.forget_kv(lost, 64, b"")
        assert await cells_when_idle(client, "lost") == "dddd" + "-" * 11
        texts = {"lost": (await generate(client, "whole", [*lost, 7, 8, 9], 8)).token_ids}
        client.forget_kv([*lost, 7, 8, 9, *texts["lost"]], 64, b"")
        await cells_when_idle(client, "lost")
    async with real_engine(tmp_path / "kv") as client:
        for name, prompt, num_found in (("lost", lost, 64), ("left", left, 224)):
            before = hits(client, "disk")
            ready = await generate(client, f"ready {name}", prompt, 0, name)
            assert ready.token_ids == ()
            assert ready.num_cached_tokens == num_found == hits(client, "disk") - before
            assert await cells_when_idle(client, name) == "d" * 15
            turn = await generate(client, name, [*prompt, 7, 8, 9], 8, name)
            assert turn.num_cached_tokens == 240
            assert turn.token_ids == texts.get(name, turn.token_ids)
