"""From tokens to pieces: stop strings end the engine's work, usage counts what was generated (B3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from engine.messages import AddRequest, FinishReason, SamplingParams
from gateway.detokenizer import build_token_table
from gateway.generation import Finish, Generation
from gateway.mailbox import StreamLimits
from gateway.openai.answers import join
from gateway.openai.validated import GenerationRequest
from gateway.token_stream import TokenStream
from tests.gateway.house import IM_END, engine_info, text_ids
from tests.support.scripted_engine import Script, ScriptedEngine
from tests.support.tiny_tokenizers import byte_level

TABLE = build_token_table(json.loads(byte_level().to_str()))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(engine_info("nowhere"), lambda request: Script(token_ids=(1,)))
    yield engine
    await engine.close()


async def generate(
    engine: ScriptedEngine, script: Script, stops: tuple[str, ...] = (), max_tokens: int = 100
) -> tuple[str, Finish]:
    engine.scripts = lambda request: script
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    request = GenerationRequest("tiny", (1, 2, 3), sampling, stops, False, False, None)
    add = AddRequest(request_id="r", prompt_token_ids=(1, 2, 3), sampling=sampling)
    stream = TokenStream(engine, add, StreamLimits())
    stream.submit()
    generation = Generation(request, stream, TABLE)
    pieces = []
    while True:
        progress = await generation.next()
        assert progress is not None
        pieces.append(progress.piece)
        if progress.finish is not None:
            return join(pieces).text, progress.finish


@pytest.mark.parametrize("per_step", [1, 2, 3, 7, 50])
async def test_a_stop_string_ends_the_text_and_the_count(engine: ScriptedEngine, per_step: int) -> None:
    script = Script(token_ids=text_ids("one END two"), per_step=per_step, endless=True)
    text, finish = await generate(engine, script, ("END",))
    assert text == "one "
    assert finish.reason is FinishReason.STOP
    assert finish.usage.completion_tokens == len("one END")
    assert engine.record.aborted == ["r"]


@pytest.mark.parametrize("per_step", [1, 3, 50])
async def test_the_token_that_ends_the_sequence_counts_but_is_no_text(
    engine: ScriptedEngine, per_step: int
) -> None:
    script = Script(token_ids=text_ids("ab"), stop_token_id=text_ids("c")[0], per_step=per_step)
    text, finish = await generate(engine, script)
    assert text == "ab"
    assert finish.usage.completion_tokens == 3
    assert finish.usage.total_tokens == 6


async def test_the_limit_inside_a_character_counts_the_tokens_and_drops_the_rest(
    engine: ScriptedEngine,
) -> None:
    text, finish = await generate(engine, Script(token_ids=text_ids("a😀")), max_tokens=3)
    assert (text, finish.reason, finish.usage.completion_tokens) == ("a", FinishReason.LENGTH, 3)


async def test_a_stop_string_wins_over_an_end_in_the_same_step(engine: ScriptedEngine) -> None:
    script = Script(token_ids=text_ids("aXb"), stop_token_id=IM_END, per_step=10)
    text, finish = await generate(engine, script, ("X",))
    assert (text, finish.usage.completion_tokens) == ("a", 2)


async def test_cached_tokens_are_reported(engine: ScriptedEngine) -> None:
    script = Script(token_ids=text_ids("ab"), num_cached_tokens=2)
    _, finish = await generate(engine, script)
    assert finish.usage.prompt_tokens_details.cached_tokens == 2
