"""/v1/completions: prompts, shapes of answers, log probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.scripted import Script
from tests.gateway.house import House, text_ids

Make = Callable[..., Any]
HELLO = 256


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], [72, 105], [[72, 105]]])
async def test_forms_of_one_prompt(make_house: Make, prompt: Any) -> None:
    house: House = await make_house()
    assert (await house.complete(prompt=prompt)).status == 200
    assert house.engine.record.submitted[-1].prompt_token_ids == (72, 105)


@pytest.mark.case("C1")
@pytest.mark.case("C2")
@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], None, [999_999], [[300]], [-1], [10**30], [1, "a"], ["a", 1], {}, 5, True,
               [True], [1.5], [[1], "a"], [[1], []], ["a", ""], ["a"] * 257, [["a"]],
               "x" * 5000, "x" * 256, [1] * 256]
)  # fmt: skip
async def test_a_bad_prompt_costs_one_400(make_house: Make, prompt: Any) -> None:
    house: House = await make_house()
    reply = await house.complete(prompt=prompt)
    assert reply.status == 400
    assert reply.error["param"].startswith("prompt")
    assert not house.engine.record.submitted
    await house.check_alive()


@pytest.mark.parametrize(("fields", "given"), [({}, 16), ({"min_tokens": 20}, 20), ({"max_tokens": 40}, 40)])
async def test_an_answer_has_sixteen_tokens_unless_asked(
    make_house: Make, fields: dict[str, int], given: int
) -> None:
    house: House = await make_house()
    reply = await house.complete(**{"max_tokens": None, **fields})
    assert house.engine.record.submitted[-1].sampling.max_tokens == given
    assert "x-tidegate-max-tokens-clamped" not in reply.headers


@pytest.mark.case("C11")
async def test_a_prompt_that_is_too_long_states_both_lengths(make_house: Make) -> None:
    house: House = await make_house()
    error = (await house.complete(prompt="x" * 300)).error
    assert error["code"] == "context_length_exceeded"
    assert "300" in error["message"]
    assert "256" in error["message"]


async def test_nul_characters_are_text(make_house: Make) -> None:
    house: House = await make_house()
    assert (await house.complete(prompt="a\x00b")).status == 200
    assert house.engine.record.submitted[-1].prompt_token_ids == (97, 0, 98)


async def test_a_whole_answer(make_house: Make) -> None:
    house: House = await make_house()
    house.say(text_ids("Hello"), num_cached_tokens=1)
    answer = (await house.complete(prompt="Hi")).json
    assert answer["id"].startswith("cmpl-")
    assert answer["system_fingerprint"].startswith("fp_")
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_logprobs_join_to_the_text_and_offsets_follow(make_house: Make) -> None:
    house: House = await make_house()
    script = Script(token_ids=[HELLO, *text_ids("é!"), 265, *text_ids("STOP")], per_step=3, endless=True)
    house.script(script, script)
    plain = (await house.complete(logprobs=2, stop="OP")).json["choices"][0]
    streamed = await house.complete(logprobs=2, stop="OP", stream=True)
    logprobs = plain["logprobs"]
    assert plain["text"] == "Helloé!ST" == "".join(logprobs["tokens"])
    assert logprobs["tokens"] == ["Hello", "", "é", "!", "", "S", "T"]
    assert logprobs["text_offset"] == [0, 5, 5, 6, 7, 7, 8]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 7
    assert logprobs["top_logprobs"][0] == {"\x01": -0.5, "\x02": -1.5, "Hello": -0.25}
    chunks = [choice["logprobs"] for event in streamed.events for choice in event["choices"]]
    for name in logprobs:
        assert [value for chunk in chunks if chunk for value in chunk[name]] == logprobs[name]


@pytest.mark.case("B7")
@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_zero_gives_the_chosen_token_only(make_house: Make, stream: bool) -> None:
    house: House = await make_house()
    house.say([HELLO])
    reply = await house.complete(logprobs=0, stream=stream)
    logprobs = (reply.events[0] if stream else reply.json)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.25]
    assert logprobs["top_logprobs"] == [{}]


async def test_a_probability_of_zero_is_still_json(make_house: Make) -> None:
    house: House = await make_house()
    house.say([HELLO], top=((1, float("-inf")),))
    logprobs = (await house.complete(logprobs=1)).json["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"][0]["\x01"] == -9999.0


@pytest.mark.case("C6")
@pytest.mark.parametrize("logprobs", [-1, 21, 10**9, 10**30])
async def test_logprobs_are_capped(make_house: Make, logprobs: int) -> None:
    house: House = await make_house()
    assert (await house.complete(logprobs=logprobs)).error["param"] == "logprobs"
