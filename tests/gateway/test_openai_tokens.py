"""/tokenize and /detokenize."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.gateway.house import IM_END, House, text_ids

Make = Callable[..., Awaitable[House]]


async def post(house: House, path: str, **body: Any) -> Any:
    return await house.request("POST", path, json=body)


async def test_there_and_back(make_house: Make) -> None:
    house = await make_house()
    text = "Grüße, 😀!"
    reply = await post(house, "/tokenize", prompt=text, return_token_strs=True)
    assert reply.json["tokens"] == text_ids(text)
    assert reply.json["count"] == len(text_ids(text))
    assert reply.json["max_model_len"] == 256
    assert len(reply.json["token_strs"]) == reply.json["count"]
    back = await post(house, "/detokenize", tokens=reply.json["tokens"])
    assert back.json == {"prompt": text}
    assert "token_strs" not in (await post(house, "/tokenize", prompt="a")).json


async def test_a_chat_has_the_tokens_that_the_engine_would_get(make_house: Make) -> None:
    house = await make_house()
    messages = [{"role": "user", "content": "Hi"}]
    reply = await post(house, "/tokenize", messages=messages)
    house.say(text_ids("x"))
    await house.request("POST", "/v1/chat/completions", json={"messages": messages})
    assert tuple(reply.json["tokens"]) == house.engine.record.submitted[-1].prompt_token_ids
    assert not house.engine.request_ids


async def test_special_tokens_show_as_their_names(make_house: Make) -> None:
    house = await make_house()
    assert (await post(house, "/detokenize", tokens=[65, IM_END])).json == {"prompt": "A<|im_end|>"}
    assert (await post(house, "/detokenize", tokens=[])).json == {"prompt": ""}


async def test_as_many_ids_as_the_window_has_tokens_are_text(make_house: Make) -> None:
    house = await make_house()
    assert (await post(house, "/detokenize", tokens=[65] * 256)).json == {"prompt": "A" * 256}
    schemas = (await house.request("GET", "/openapi.json")).json["components"]["schemas"]
    assert '"maxItems": 256' in json.dumps(schemas["DetokenizeWire"]["properties"]["tokens"])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt"),
        ("/tokenize", {"prompt": "a", "extra": 1}, "extra"),
        ("/tokenize", {"prompt": "a", "reasoning_effort": "x"}, "reasoning_effort"),
        ("/tokenize", {"prompt": "a", "tools": [{"type": "x"}]}, "tools[0].type"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [65] * 257}, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model"),
    ],
)
async def test_what_is_wrong_is_named(make_house: Make, path: str, body: dict[str, Any], param: str) -> None:
    house = await make_house()
    reply = await post(house, path, **body)
    assert reply.status in (400, 404)
    assert reply.error["param"] == param


async def test_a_key_is_needed_if_there_are_keys(make_house: Make) -> None:
    house = await make_house(api_keys=("secret",))
    for path in ("/tokenize", "/detokenize"):
        assert (await post(house, path, prompt="a")).status == 401
