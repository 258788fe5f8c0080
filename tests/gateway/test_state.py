"""Settings, open streams and what makes a fingerprint."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.messages import AddRequest, SamplingParams
from engine.scripted import Script, ScriptedEngine
from gateway.mailbox import SHUTDOWN, StreamFailedError, StreamLimits
from gateway.state import GatewaySettings, OpenStreams, open_gateway
from gateway.token_stream import TokenStream
from tests.gateway.house import engine_info


@pytest.fixture
async def engine(tokenizer_dir: str) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(engine_info(tokenizer_dir), lambda request: Script(token_ids=(1,), endless=True))
    yield engine
    await engine.close()


def stream_of(engine: ScriptedEngine, request_id: str) -> TokenStream:
    sampling = SamplingParams(max_tokens=10**6, seed=0)
    add = AddRequest(request_id=request_id, prompt_token_ids=(1,), sampling=sampling)
    return TokenStream(engine, [add], StreamLimits())


async def test_leaving_the_scope_frees_the_engine(engine: ScriptedEngine) -> None:
    streams = OpenStreams()

    async def fail_inside() -> None:
        async with streams.open(stream_of(engine, "a")):
            assert streams.request_ids == ("a",)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail_inside()
    assert len(streams) == 0
    assert engine.record.aborted == ["a"]


async def test_after_the_end_a_new_stream_never_reaches_the_engine(engine: ScriptedEngine) -> None:
    streams = OpenStreams()
    async with streams.open(stream_of(engine, "a")) as first:
        streams.end_all(SHUTDOWN)
        with pytest.raises(StreamFailedError):
            await first.next_batch()
        async with streams.open(stream_of(engine, "b")) as second:
            with pytest.raises(StreamFailedError):
                await second.next_batch()
    assert [add.request_id for add in engine.record.submitted] == ["a"]


async def test_the_fingerprint_follows_what_can_change_the_text(tokenizer_dir: str) -> None:
    fingerprints = set()
    for dtype in ("float32", "bfloat16"):
        engine = ScriptedEngine(
            engine_info(tokenizer_dir, dtype=dtype), lambda request: Script(token_ids=(1,))
        )
        gateway = await open_gateway(engine, GatewaySettings())
        fingerprints.add(gateway.model.fingerprint)
        await gateway.close()
        await engine.close()
    assert len(fingerprints) == 2


async def test_draining_an_idle_gateway_returns_at_once(engine: ScriptedEngine) -> None:
    gateway = await open_gateway(engine, GatewaySettings())
    await gateway.drain(60)
    assert gateway.condition == "draining"
    await gateway.close()
