"""From tokens to pieces: stop strings end the engine's work, usage counts what was generated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from engine.messages import AddRequest, FinishReason, SamplingParams
from engine.scripted import Script, ScriptedEngine
from gateway.answer import Piece
from gateway.detokenizer import build_token_table
from gateway.generation import Generation
from gateway.mailbox import StreamLimits
from gateway.openai.answers import Usage, join
from gateway.openai.validated import GenerationRequest, Prompt
from gateway.token_stream import TokenStream
from tests.gateway.house import IM_END, engine_info, text_ids
from tests.support.tiny_tokenizers import byte_level

TABLE = build_token_table(json.loads(byte_level().to_str()))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(engine_info("nowhere"), lambda request: Script(token_ids=(1,)))
    yield engine
    await engine.close()


async def generate(
    engine: ScriptedEngine, script: Script, stops: tuple[str, ...] = (), max_tokens: int = 100
) -> tuple[str, FinishReason, Usage]:
    (text,), (reason,), usage = await generate_several(engine, script, stops, max_tokens)
    return text, reason, usage


async def generate_several(
    engine: ScriptedEngine,
    script: Script,
    stops: tuple[str, ...],
    max_tokens: int = 100,
    n: int = 1,
    keeps_stop: bool = False,
) -> tuple[list[str], list[FinishReason], Usage]:
    engine.scripts = lambda request: script
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, n=n)
    request = GenerationRequest(
        model="tiny",
        prompts=(Prompt((1, 2, 3), sampling),),
        stops=stops,
        num_choices=n,
        keeps_stop=keeps_stop,
    )
    add = AddRequest(request_id="r", prompt_token_ids=(1, 2, 3), sampling=sampling)
    stream = TokenStream(engine, [add], StreamLimits())
    stream.submit()
    generation = Generation(request, stream, TABLE)
    pieces: dict[int, list[Piece]] = {index: [] for index in range(n)}
    reasons: dict[int, FinishReason] = {}
    while True:
        progress = await generation.next()
        assert progress is not None
        for part in progress.pieces:
            assert part.index not in reasons, "a piece after the last one"
            pieces[part.index].append(part.piece)
            if part.finish_reason is not None:
                reasons[part.index] = part.finish_reason
        if progress.usage is not None:
            texts = [join(parts).text for parts in pieces.values()]
            return texts, [reasons[index] for index in range(n)], progress.usage


@pytest.mark.case("B3")
@pytest.mark.parametrize("per_step", [1, 2, 3, 7, 50])
async def test_a_stop_string_ends_the_text_and_the_count(engine: ScriptedEngine, per_step: int) -> None:
    script = Script(token_ids=text_ids("one END two"), per_step=per_step, endless=True)
    text, reason, usage = await generate(engine, script, ("END",))
    assert text == "one "
    assert reason is FinishReason.STOP
    assert usage.completion_tokens == len("one END")
    assert engine.record.aborted == ["r"]


@pytest.mark.parametrize("per_step", [1, 3, 50])
async def test_the_token_that_ends_the_sequence_counts_but_is_no_text(
    engine: ScriptedEngine, per_step: int
) -> None:
    script = Script(token_ids=text_ids("ab"), stop_token_id=text_ids("c")[0], per_step=per_step)
    text, _, usage = await generate(engine, script)
    assert text == "ab"
    assert usage.completion_tokens == 3
    assert usage.total_tokens == 6


@pytest.mark.case("A6")
async def test_the_limit_inside_a_character_counts_the_tokens_and_drops_the_rest(
    engine: ScriptedEngine,
) -> None:
    text, reason, usage = await generate(engine, Script(token_ids=text_ids("a😀")), max_tokens=3)
    assert (text, reason, usage.completion_tokens) == ("a", FinishReason.LENGTH, 3)


async def test_a_stop_string_wins_over_an_end_in_the_same_step(engine: ScriptedEngine) -> None:
    script = Script(token_ids=text_ids("aXb"), stop_token_id=IM_END, per_step=10)
    text, _, usage = await generate(engine, script, ("X",))
    assert (text, usage.completion_tokens) == ("a", 2)


async def test_cached_tokens_are_reported(engine: ScriptedEngine) -> None:
    script = Script(token_ids=text_ids("ab"), num_cached_tokens=2)
    _, _, usage = await generate(engine, script)
    assert usage.prompt_tokens_details.cached_tokens == 2


@pytest.mark.parametrize("per_step", [1, 4])
async def test_a_stop_string_ends_its_own_choice_only(engine: ScriptedEngine, per_step: int) -> None:
    script = Script(
        token_ids=text_ids("one END two"),
        per_step=per_step,
        others=[Script(token_ids=text_ids("some other thing"))],
    )
    texts, reasons, usage = await generate_several(engine, script, ("END",), n=3)
    assert texts == ["one ", "some other thing", "some other thing"]
    assert reasons == [FinishReason.STOP] * 3
    assert usage.completion_tokens == len("one END") + 2 * len("some other thing")
    assert usage.prompt_tokens == 3
    assert engine.record.aborted_sequences == [("r", 0)]


async def test_the_last_choice_to_be_stopped_ends_the_request(engine: ScriptedEngine) -> None:
    script = Script(
        token_ids=text_ids("aX"), endless=True, others=[Script(token_ids=text_ids("abcX"), endless=True)]
    )
    texts, _, _ = await generate_several(engine, script, ("X",), n=2)
    assert texts == ["a", "abc"]
    assert engine.record.aborted == ["r"]
    assert not engine.request_ids


@pytest.mark.parametrize("per_step", [1, 2, 50])
async def test_a_stop_string_is_kept_on_request(engine: ScriptedEngine, per_step: int) -> None:
    script = Script(token_ids=text_ids("one END two"), per_step=per_step, endless=True)
    (text,), (reason,), usage = await generate_several(engine, script, ("END", "wo"), keeps_stop=True)
    assert (text, reason) == ("one END", FinishReason.STOP)
    assert usage.completion_tokens == len("one END")


async def test_a_stop_token_is_kept_on_request_if_it_is_text(engine: ScriptedEngine) -> None:
    for stop, shown in ((text_ids("c")[0], "abc"), (IM_END, "ab")):
        script = Script(token_ids=text_ids("ab"), stop_token_id=stop)
        (text,), _, usage = await generate_several(engine, script, (), keeps_stop=True)
        assert (text, usage.completion_tokens) == (shown, 3)
