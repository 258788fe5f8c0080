"""Prompts in answers: echo, prompt_logprobs, prompts alone, and what bounds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.scripted import Script
from gateway.openai.prompts import MAX_SHOWN_PROMPTS, Echo, more_of, truncated
from gateway.tokenizer import TextCodec
from tests.gateway.house import IM_END, House, text_ids
from tests.gateway.test_several_choices import texts
from tests.support.tiny_tokenizers import byte_level, save, sentence_pieces

Make = Callable[..., Any]
HELLO = 256
PROMPT = "1, 2\n\n3 é 漢\t<|im_start|>x"


def of_choice(events: list[Any], index: int) -> list[Any]:
    return [choice for event in events for choice in event["choices"] if choice["index"] == index]


# ---- echo ------------------------------------------------------------------------------------------


@pytest.mark.case("B10")
async def test_the_tokens_joined_are_the_prompt_and_the_answer(make_house: Make) -> None:
    house: House = await make_house()
    house.say(text_ids("ok"))
    choice = (await house.complete(prompt=PROMPT, echo=True, logprobs=1)).json["choices"][0]
    logprobs, num_prompt = choice["logprobs"], len(text_ids(PROMPT.replace("<|im_start|>", ""))) + 1
    assert choice["text"] == PROMPT + "ok" == "".join(logprobs["tokens"])
    assert len(logprobs["tokens"]) == num_prompt + 3, "with the token that ended the answer"
    assert logprobs["tokens"][:3] == ["1", ",", " "]
    assert logprobs["tokens"][-5:] == ["<|im_start|>", "x", "o", "k", ""]
    offsets = [len("".join(logprobs["tokens"][:i])) for i in range(num_prompt + 3)]
    assert logprobs["text_offset"] == offsets
    assert logprobs["token_logprobs"][:3] == [None, -0.25, -0.5]
    assert logprobs["token_logprobs"][-3:] == [-0.25, -0.25, -0.25]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"\x01": -0.5, ",": -0.25}
    assert all(logprobs["top_logprobs"][1:])


@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_is_the_plain_answer_in_pieces_and_begins_with_the_prompt(
    make_house: Make, logprobs: int | None, n: int
) -> None:
    house: House = await make_house()
    others = [Script(token_ids=text_ids("b!é")), Script(token_ids=text_ids("c"), stop_token_id=IM_END)]
    script = Script(token_ids=[HELLO, 33], others=others)
    house.script(*[script] * 4)
    asked = {"prompt": ["one é", "two"], "echo": True, "logprobs": logprobs, "n": n}
    plain = (await house.complete(**asked)).json["choices"]
    events = (await house.complete(**asked, stream=True)).events
    assert texts(plain)[::n] == ["one éHello!", "twoHello!"]
    for index, choice in enumerate(plain):
        chunks = of_choice(events, index)
        assert chunks[0]["text"] == ("one é", "two")[index // n]
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        if logprobs is None:
            assert choice["logprobs"] is None
            continue
        for name in choice["logprobs"]:
            parts = [chunk["logprobs"][name] for chunk in chunks if chunk["logprobs"]]
            assert [value for part in parts for value in part] == choice["logprobs"][name]
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


async def test_logprobs_zero_has_no_alternatives(make_house: Make) -> None:
    house: House = await make_house()
    house.say([HELLO])
    logprobs = (await house.complete(prompt="ab", echo=True, logprobs=0)).json["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, -0.25, -0.25, -0.25]
    assert logprobs["top_logprobs"] == [None, {}, {}, {}]


async def test_token_ids_are_echoed_as_text_with_special_tokens_by_name(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.complete(prompt=[265, HELLO, IM_END], echo=True, logprobs=0)
    choice = reply.json["choices"][0]
    assert choice["text"] == "<|im_start|>Hello<|im_end|>ok"
    assert choice["logprobs"]["tokens"][:3] == ["<|im_start|>", "Hello", "<|im_end|>"]


async def test_the_engine_is_asked_only_for_what_is_shown(make_house: Make) -> None:
    house: House = await make_house()
    for fields, asked in (
        ({"echo": True}, None),
        ({"echo": True, "logprobs": 3}, 3),
        ({"echo": False, "logprobs": 3}, None),
        ({"logprobs": 3, "prompt_logprobs": 0}, 0),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 1}, 3),
        ({"echo": True, "logprobs": 1, "prompt_logprobs": 4}, 4),
    ):
        await house.complete(**fields)
        assert house.engine.record.submitted[-1].sampling.prompt_logprobs == asked


async def test_an_answer_cut_in_a_character_or_by_a_stop_string(make_house: Make) -> None:
    """Every token has its place, but for those that a stop string cut off."""
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("é"), endless=True))
    choice = (await house.complete(prompt="ab", echo=True, logprobs=0, max_tokens=1)).json["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["a", "b", ""])
    house.script(Script(token_ids=text_ids("xSTOP"), endless=True))
    choice = (await house.complete(prompt="ab", echo=True, logprobs=0, stop="STOP")).json["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("abx", ["a", "b", "x"])


async def test_a_stop_string_in_the_prompt_ends_nothing(make_house: Make) -> None:
    house: House = await make_house()
    house.say(text_ids("ok"))
    assert (await house.complete(prompt="a STOP b", echo=True, stop="STOP")).text == "a STOP bok"


@pytest.mark.parametrize("answer", [[HELLO], [IM_END], [0xC3], [265]])
async def test_what_lm_eval_reads(make_house: Make, answer: list[int]) -> None:
    """It cuts the context off the front and one generated token off the end, whatever that was."""
    house: House = await make_house()
    is_end = answer == [IM_END]
    house.script(
        Script(
            token_ids=() if is_end else answer, stop_token_id=IM_END if is_end else None, endless=not is_end
        )
    )
    context, continuation = text_ids("The sky is"), text_ids(" blue")
    body = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234}
    (choice,) = (await house.complete(prompt=[[*context, *continuation]], **body)).json["choices"]
    scored = choice["logprobs"]["token_logprobs"][len(context) : -1]
    assert scored == [-i / 4 for i in range(len(context), len(context) + len(continuation))]
    best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][len(context) : -1]]
    assert len(best) == len(continuation)
    assert all(top >= own for top, own in zip(best, scored, strict=True))


# ---- the prompt alone ------------------------------------------------------------------------------


@pytest.mark.case("C8")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("logprobs", [None, 1])
async def test_no_tokens_score_the_prompt_and_generate_nothing(
    make_house: Make, stream: bool, logprobs: int | None
) -> None:
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("no")))
    reply = await house.complete(
        prompt="abc",
        echo=True,
        max_tokens=0,
        logprobs=logprobs,
        stream=stream,
        stream_options={"include_usage": True} if stream else None,
    )
    assert reply.text == "abc"
    choices = of_choice(reply.events, 0) if stream else reply.json["choices"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    if logprobs is not None:
        assert choices[0]["logprobs"]["token_logprobs"] == [None, -0.25, -0.5]
    usage = (reply.events[-1] if stream else reply.json)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 0, 3)
    await house.check_alive()


async def test_such_a_prompt_may_fill_the_window(make_house: Make) -> None:
    house: House = await make_house()
    assert (await house.complete(prompt="x" * 256, echo=True, max_tokens=0)).status == 200
    assert (await house.complete(prompt="x" * 257, echo=True, max_tokens=0)).status == 400
    assert (await house.complete(prompt="x" * 256, echo=True, max_tokens=1)).status == 400


@pytest.mark.parametrize(
    "fields",
    [{}, {"echo": False}, {"prompt_logprobs": 1}, {"echo": True, "use_beam_search": True, "n": 2}],
)
async def test_no_tokens_go_with_an_echo_only(make_house: Make, fields: dict[str, Any]) -> None:
    house: House = await make_house()
    assert (await house.complete(max_tokens=0, **fields)).error["param"] == "max_tokens"
    assert not house.engine.record.submitted


# ---- prompt_logprobs -------------------------------------------------------------------------------

EXPECTED = [
    None,
    {
        "105": {"logprob": -0.25, "rank": 1, "decoded_token": "i"},
        "1": {"logprob": -0.5, "rank": 1, "decoded_token": "\x01"},
        "2": {"logprob": -1.5, "rank": 2, "decoded_token": "\x02"},
    },
]


async def test_completions_have_them_in_each_choice(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.complete(prompt=["Hi", "abc"], n=2, prompt_logprobs=2)
    choices = reply.json["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"] == EXPECTED
    assert choices[0]["logprobs"] is None
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [2, 2, 3, 3]
    plain = await house.complete(prompt="Hi", echo=True, logprobs=2)
    assert "prompt_logprobs" not in plain.json["choices"][0]


async def test_chats_have_them_once(make_house: Make) -> None:
    house: House = await make_house()
    answer = (await house.chat(prompt_logprobs=1, n=2)).json
    assert len(answer["choices"]) == 2
    prompt = house.engine.record.submitted[-1].prompt_token_ids
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == len(prompt) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][1][str(prompt[1])]["logprob"] == -0.25
    assert "prompt_logprobs" not in (await house.chat()).json


async def test_fewer_are_shown_than_the_echo_asked_for(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.complete(prompt="Hi", echo=True, logprobs=2, prompt_logprobs=0)
    choice = reply.json["choices"][0]
    assert choice["prompt_logprobs"] == [None, {"105": EXPECTED[1]["105"]}]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 3
    reply = await house.complete(prompt="Hi", echo=True, logprobs=1, prompt_logprobs=2)
    assert len(reply.json["choices"][0]["logprobs"]["top_logprobs"][1]) == 2


async def test_a_probability_of_zero_is_still_json(make_house: Make) -> None:
    house: House = await make_house()
    house.say([HELLO], top=((1, float("-inf")),))
    choice = (await house.complete(prompt="Hi", prompt_logprobs=1)).json["choices"][0]
    assert choice["prompt_logprobs"][1]["1"]["logprob"] == -9999.0


@pytest.mark.parametrize("value", [-1, 21, 10**9, 10**30])
async def test_they_are_capped(make_house: Make, value: int) -> None:
    house: House = await make_house()
    for ask in (house.complete, house.chat):
        assert (await ask(prompt_logprobs=value)).error["param"] == "prompt_logprobs"
        assert (await ask(prompt_logprobs=1, stream=True)).error["param"] == "prompt_logprobs"
    assert not house.engine.record.submitted


# ---- sizes -----------------------------------------------------------------------------------------


async def test_a_long_prompt_is_no_slow_reader_and_is_formatted_off_the_loop(
    make_house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more log probabilities than a mailbox holds."""
    house: House = await make_house(info={"max_model_len": 10_000, "num_blocks": 1000})
    on_threads: list[str] = []
    run = house.gateway.offload.run

    async def watched(function: Callable[..., Any], *args: object, owner: str) -> Any:
        on_threads.append(function.__name__)
        return await run(function, *args, owner=owner)

    monkeypatch.setattr(house.gateway.offload, "run", watched)
    for stream in (False, True):
        reply = await house.complete(prompt="a" * 9000, echo=True, logprobs=2, stream=stream, max_tokens=5)
        assert reply.text == "a" * 9000 + "ok"
    assert on_threads == ["parse", "whole", "parse", "opening"]
    assert not house.engine.record.paused
    await house.check_alive()


async def test_what_an_answer_may_show_of_prompts_is_bounded(make_house: Make) -> None:
    house: House = await make_house(info={"max_model_len": 40_000, "num_blocks": 200_000, "vocab_size": 300})
    prompt, fits = "a" * 30_000, "a" * (MAX_SHOWN_PROMPTS // 21)
    for fields in (
        {"prompt": prompt, "prompt_logprobs": 20},
        {"prompt": prompt, "echo": True, "logprobs": 20},
        {"prompt": prompt, "echo": True, "n": 17},
        {"prompt": [prompt] * 9, "echo": True, "logprobs": 1},
    ):
        assert (await house.complete(**fields)).error["param"] == "prompt"
    assert not house.engine.record.submitted
    assert (await house.complete(prompt=fits, prompt_logprobs=20)).status == 200


# ---- the pieces ------------------------------------------------------------------------------------


@pytest.mark.case("B10")
@pytest.mark.parametrize("text", ["Hello world", " a", "<s>a", "a<s>b</s>", "é漢", "a b  c", "\n"])
@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_an_echo_is_the_text_that_was_sent(tmp_path: Path, make: Callable[[], Any], text: str) -> None:
    codec = TextCodec.load(save(make(), tmp_path))
    ids = codec.encode(text, add_special_tokens=True)
    echo = Echo.of(codec.table, ids, text)
    assert echo.text == "".join(echo.texts)
    assert len(echo.texts) == len(ids)
    assert echo.text == text


def test_an_echo_of_a_cut_text_is_what_is_left(tmp_path: Path) -> None:
    codec = TextCodec.load(save(byte_level(), tmp_path))
    ids = codec.encode("Hello", add_special_tokens=True)
    assert Echo.of(codec.table, ids[-3:], "Hello").text == "llo"
    assert Echo.of(codec.table, text_ids("aé")[:2], None).texts == ("a", "")


def test_small_parts() -> None:
    assert [more_of(None, None), more_of(0, None), more_of(None, 2), more_of(3, 2)] == [None, 0, 2, 3]
    assert truncated([1, 2, 3], None) == truncated([1, 2, 3], 5) == [1, 2, 3]
    assert truncated([1, 2, 3], 2) == [2, 3]


# ---- what the prompt is made of --------------------------------------------------------------------


async def test_the_last_tokens_of_a_prompt(make_house: Make) -> None:
    house: House = await make_house()
    await house.complete(prompt=["abcd", "xy"], truncate_prompt_tokens=3)
    found = [add.prompt_token_ids for add in house.engine.record.submitted[-2:]]
    assert found == [tuple(text_ids("bcd")), tuple(text_ids("xy"))]
    assert (await house.complete(prompt=[5] * 300, truncate_prompt_tokens=9)).status == 200
    assert (await house.complete(prompt="abcd", truncate_prompt_tokens=2, echo=True)).text == "cdok"
    await house.chat(truncate_prompt_tokens=10)
    assert bytes(house.engine.record.submitted[-1].prompt_token_ids) == b"assistant\n"
    for value in (0, -1, 257):
        for ask in (house.complete, house.chat):
            assert (await ask(truncate_prompt_tokens=value)).error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(("special", "has_start"), [(None, True), (True, True), (False, False)])
async def test_special_tokens_around_a_prompt(
    make_house: Make, tmp_path: Path, special: bool | None, has_start: bool
) -> None:
    directory = save(sentence_pieces(), tmp_path)
    house: House = await make_house(info={"tokenizer_dir": directory, "stop_token_ids": (2,)})
    await house.complete(prompt="a", add_special_tokens=special)
    assert (house.engine.record.submitted[-1].prompt_token_ids[0] == 1) == has_start
    await house.chat(add_special_tokens=special)
    assert (house.engine.record.submitted[-1].prompt_token_ids[0] == 1) == bool(special)
