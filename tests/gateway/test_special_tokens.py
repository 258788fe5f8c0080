"""skip_special_tokens, and usage on every chunk of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.scripted import Script
from tests.gateway.house import IM_END, House, text_ids

Make = Callable[..., Any]
START = 265


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("skip", "shown"), [(None, "ab"), (True, "ab"), (False, "a<|im_start|>b")])
async def test_special_tokens_are_shown_by_name_on_request(
    make_house: Make, stream: bool, skip: bool | None, shown: str
) -> None:
    """The one that ended the text is not."""
    house: House = await make_house()
    for ask in (house.complete, house.chat):
        house.say([97, START, 98])
        assert (await ask(skip_special_tokens=skip, stream=stream)).text == shown


async def test_logprobs_are_aligned_to_the_names(make_house: Make) -> None:
    house: House = await make_house()
    house.say([97, START, 98])
    choice = (await house.complete(skip_special_tokens=False, logprobs=0)).json["choices"][0]
    assert choice["logprobs"]["tokens"] == ["a", "<|im_start|>", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 13]
    house.say([97, START, 98])
    content = (await house.chat(skip_special_tokens=False, logprobs=True)).json["choices"][0]["logprobs"]
    raw = [bytes(entry["bytes"]) for entry in content["content"]]
    assert raw == [b"a", b"<|im_start|>", b"b"]


async def test_a_name_may_hold_a_stop_string_and_the_stop_token_be_kept(make_house: Make) -> None:
    house: House = await make_house()
    house.say([97, START, 98])
    assert (await house.complete(skip_special_tokens=False, stop="start")).text == "a<|im_"
    house.say([97])
    reply = await house.complete(skip_special_tokens=False, include_stop_str_in_output=True)
    assert reply.text == "a<|im_end|>"


@pytest.mark.parametrize("n", [1, 2])
async def test_every_chunk_tells_the_usage_so_far(make_house: Make, n: int) -> None:
    house: House = await make_house()
    options = {"include_usage": True, "continuous_usage_stats": True}
    for ask in (house.complete, house.chat):
        house.script(Script(token_ids=text_ids("abc"), others=[Script(token_ids=text_ids("defgh"))]))
        events = (await ask(stream=True, stream_options=options, n=n)).events
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts)
        assert counts[0] == n
        assert counts[-1] == (3 if n == 1 else 8)
        assert [bool(event["choices"]) for event in events] == [True] * (len(events) - 1) + [False]
        for event in events:
            usage = event["usage"]
            assert usage["prompt_tokens"] > 0
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_usage_counts_what_a_stop_cut_off_in_every_chunk(make_house: Make) -> None:
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("abSTOPc"), per_step=3, stop_token_id=IM_END))
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await house.complete(stream=True, stream_options=options, stop="STOP")).events
    assert events[-1]["usage"]["completion_tokens"] == len("abSTOP")


@pytest.mark.parametrize("options", [{"continuous_usage_stats": True}, {"include_usage": False}, {}])
async def test_nobody_gets_usage_who_did_not_ask(make_house: Make, options: dict[str, bool]) -> None:
    house: House = await make_house()
    events = (await house.complete(stream=True, stream_options=options)).events
    assert all("usage" not in event for event in events)


async def test_it_goes_with_a_stream_only(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.complete(stream_options={"continuous_usage_stats": True})
    assert reply.error["param"] == "stream_options"
