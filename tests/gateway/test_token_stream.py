"""A stream over a scripted engine: pauses, time-outs, release by scope."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.messages import AddRequest, SamplingParams
from engine.scripted import Script, ScriptedEngine
from gateway.mailbox import (
    TOO_SLOW,
    FailureKind,
    StreamFailedError,
    StreamLimits,
)
from gateway.token_stream import TokenStream
from tests.gateway.house import engine_info

LIMITS = StreamLimits(high_units=4, hard_units=16, pause_timeout_s=30)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(engine_info("nowhere"), lambda request: Script(token_ids=(1,), endless=True))
    yield engine
    await engine.close()


def stream_of(engine: ScriptedEngine, limits: StreamLimits = LIMITS, max_tokens: int = 1000) -> TokenStream:
    request = AddRequest(
        request_id="r", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=max_tokens, seed=0)
    )
    return TokenStream(engine, [request], limits)


async def test_release_aborts_what_runs_and_only_once(engine: ScriptedEngine) -> None:
    stream = stream_of(engine)
    stream.submit()
    await stream.next_batch()
    stream.release()
    stream.release()
    assert engine.record.aborted == ["r"]
    assert not engine.request_ids


async def test_release_after_the_end_asks_for_nothing(engine: ScriptedEngine) -> None:
    stream = stream_of(engine, max_tokens=3)
    stream.submit()
    seen: list[int] = []
    while True:
        batch = await stream.next_batch()
        assert batch is not None
        seen += batch.parts[0].token_ids
        if batch.parts[0].finish_reason is not None:
            break
    stream.release()
    assert seen == [1, 1, 1]
    assert engine.record.aborted == []


async def test_a_reader_that_waits_pauses_the_engine_and_resumes_it(engine: ScriptedEngine) -> None:
    stream = stream_of(engine, max_tokens=20)
    stream.submit()
    total = 0
    while total < 20:
        while engine.record.num_delivered.get("r", 0) < 20 and len(engine.record.paused) == len(
            engine.record.resumed
        ):
            await asyncio.sleep(0)
        batch = await stream.next_batch()
        assert batch is not None
        assert len(batch.parts[0].token_ids) <= 4
        total += len(batch.parts[0].token_ids)
    assert engine.record.paused == engine.record.resumed
    assert len(engine.record.paused) == 4
    stream.release()


async def test_a_pause_without_end_gives_the_request_up(engine: ScriptedEngine) -> None:
    stream = stream_of(engine, StreamLimits(high_units=4, hard_units=16, pause_timeout_s=0.02))
    stream.submit()
    while not engine.record.aborted:
        await asyncio.sleep(0.005)
    batch = await stream.next_batch()
    assert batch is not None
    assert batch.parts[0].token_ids == [1, 1, 1, 1]
    with pytest.raises(StreamFailedError) as caught:
        await stream.next_batch()
    assert caught.value.failure is TOO_SLOW
    assert engine.record.aborted == ["r"]


async def test_nothing_in_time_is_none(engine: ScriptedEngine) -> None:
    engine.freeze()
    stream = stream_of(engine)
    stream.submit()
    assert await stream.next_batch(timeout_s=0.01) is None
    engine.thaw()
    assert await stream.next_batch() is not None
    stream.release()


async def test_a_dead_engine_fails_the_stream_instead_of_raising(engine: ScriptedEngine) -> None:
    engine.die("out of luck")
    stream = stream_of(engine)
    stream.submit()
    with pytest.raises(StreamFailedError) as caught:
        await stream.next_batch()
    assert caught.value.failure.kind is FailureKind.ENGINE_DEAD
    assert caught.value.failure.detail == "out of luck"
    stream.release()
    assert engine.record.aborted == []


async def blocked_write(stream: TokenStream) -> StreamFailedError:
    """The failure that breaks off a write which never ends by itself; the write is left alone."""
    write = asyncio.create_task(asyncio.sleep(3600))
    with pytest.raises(StreamFailedError) as caught:
        await stream.wait_unless_ended(write)
    assert not write.done()
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    return caught.value


async def test_a_write_is_broken_off_when_the_stream_ends(engine: ScriptedEngine) -> None:
    stream = stream_of(engine)
    stream.submit()
    asyncio.get_running_loop().call_later(0.01, engine.die, "gone")
    assert (await blocked_write(stream)).failure.kind is FailureKind.ENGINE_DEAD


async def test_a_write_that_nothing_unblocks_is_given_up(engine: ScriptedEngine) -> None:
    stream = stream_of(engine, StreamLimits(pause_timeout_s=0.01))
    stream.submit()
    assert (await blocked_write(stream)).failure is TOO_SLOW
    assert engine.record.aborted == ["r"]


async def test_cancelling_the_reader_passes_through(engine: ScriptedEngine) -> None:
    engine.freeze()
    stream = stream_of(engine)
    stream.submit()
    task = asyncio.create_task(stream.next_batch(60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stream.release()
    assert not engine.request_ids
