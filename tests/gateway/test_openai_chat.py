"""/v1/chat/completions: message forms, shapes of answers, log probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.scripted import Script
from tests.gateway.house import House, Reply, text_ids

Make = Callable[..., Any]


async def prompt_of(house: House, messages: list[dict[str, Any]]) -> str:
    reply = await house.chat(messages=messages)
    assert reply.status == 200, reply.body
    text = bytes(i for i in house.engine.record.submitted[-1].prompt_token_ids if i < 256).decode()
    assert text.endswith("assistant\n")
    return text.removesuffix("assistant\n")


def message(role: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


@pytest.mark.case("D1")
@pytest.mark.case("D2")
@pytest.mark.case("D4")
@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([message("user", "Hi")], "user\nHi\n"),
        ([message("system", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], "system\nab\n"),
        ([message("assistant", [{"type": "text", "text": "a"}]), message("user", "b")],
         "assistant\na\nuser\nb\n"),
        ([message("assistant", ""), message("user", "b")], "assistant\n\nuser\nb\n"),
        ([message("assistant", None), message("user", "b")], "assistant\n\nuser\nb\n"),
        ([{"role": "assistant"}, message("user", "b")], "assistant\n\nuser\nb\n"),
        ([message("assistant", "a", tool_calls=[]), message("user", "b")], "assistant\na\nuser\nb\n"),
        ([message("assistant", None, tool_calls=[{"id": "c", "type": "function", "function":
            {"name": "f", "arguments": "{}"}}]), message("tool", "4", tool_call_id="c")],
         'assistant\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
         "user\n<tool_response>4</tool_response>\n"),
        ([message("assistant", None, function_call={"name": "f", "arguments": '{"x":1}'}),
          message("function", "4", name="f"), message("tool", [{"type": "text", "text": "5"}])],
         'assistant\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n'
         "user\n<tool_response>4</tool_response>\n<tool_response>5</tool_response>\n"),
        ([message("assistant", "a", reasoning_content="hmm", refusal=None)], "assistant\na\n"),
        ([message("assistant", None, refusal="I won't")], "assistant\nI won't\n"),
        ([message("developer", "be brief"), message("user", "b")], "system\nbe brief\nuser\nb\n"),
        ([message("user", "a"), message("user", "b")], "user\na\nuser\nb\n"),
        ([message("user", []), message("user", "b", name="Ann")], "user\n\nuser\nb\n"),
        ([message("assistant", [{"type": "refusal", "refusal": "no"}])], "assistant\nno\n"),
        ([message("assistant", "a", annotations=[], audio=None, reasoning="r")], "assistant\na\n"),
    ],
)  # fmt: skip
async def test_message_forms(make_house: Make, messages: list[dict[str, Any]], prompt: str) -> None:
    house: House = await make_house()
    assert await prompt_of(house, messages) == prompt


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"), (None, "messages"), ("Hi", "messages"), ([1], "messages[0]"),
        ([{"content": "x"}], "messages[0]"), ([message("user", 5)], "messages[0].content"),
        ([message("user", "a"), message("wizard", "x")], "messages[1].role"),
        ([message("user", [{"type": "image_url", "image_url": {}}])], "messages[0].content[0].type"),
        ([message("user", [{"type": "text"}])], "messages[0].content[0]"),
        ([message("user", [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}])],
         "messages[0].content[1].type"),
        ([message("assistant", [{"type": "refusal", "text": "a"}])], "messages[0].content[0]"),
        ([message("assistant", None, tool_calls=[{"id": "c"}])], "messages[0].tool_calls[0].function"),
        ([message("assistant", None, tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f"}}])],
         "messages[0].tool_calls[0].type"),
        ([message("assistant", None, tool_calls=[{"function": {}}])], "messages[0].tool_calls[0].function"),
        ([message("user", "x" * 300)], "messages"), ([message("user", "x" * 5000)], "messages"),
        ([message("user", "")] * 300, "messages"),
    ],
)  # fmt: skip
async def test_bad_messages_cost_one_400(make_house: Make, messages: Any, param: str) -> None:
    house: House = await make_house()
    reply = await house.chat(messages=messages)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert not house.engine.record.submitted
    await house.check_alive()


@pytest.mark.case("D3")
async def test_the_template_has_the_last_word(make_house: Make) -> None:
    house: House = await make_house(
        info={"chat_template": "{{ raise_exception('Roles must alternate user/assistant.') }}"}
    )
    error = (await house.chat()).error
    assert error["message"] == "Roles must alternate user/assistant."
    await house.check_alive()


async def test_tool_calls_reach_the_template_with_arguments_as_an_object(make_house: Make) -> None:
    house: House = await make_house(
        info={
            "chat_template": "{% if tools %}<tool_call>{% endif %}"
            "{{ messages[0].tool_calls[0].function.arguments.x }}assistant\n\n"
        }
    )
    calls = [{"id": "c", "function": {"name": "f", "arguments": '{"x": "deep"}'}}]
    assert await prompt_of(house, [message("assistant", None, tool_calls=calls)]) == "deep"


async def test_a_developer_message_stays_when_the_template_knows_it(make_house: Make) -> None:
    house: House = await make_house(
        info={"chat_template": "{% if false %}developer{% endif %}{{ messages[0].role }}assistant\n\n"}
    )
    assert await prompt_of(house, [message("developer", "x")]) == "developer"


@pytest.mark.parametrize("template", [None, "{% broken"])
async def test_a_model_without_a_template_points_to_completions(
    make_house: Make, template: str | None
) -> None:
    house: House = await make_house(info={"chat_template": template})
    reply = await house.chat()
    assert reply.status == 400
    assert "/v1/completions" in reply.error["message"]
    await house.check_alive()


async def test_a_whole_answer(make_house: Make) -> None:
    house: House = await make_house()
    house.say(text_ids("Hello"))
    answer = (await house.chat()).json
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"]["completion_tokens"] == 6


async def test_a_streamed_answer(make_house: Make) -> None:
    house: House = await make_house()
    house.say(text_ids("abc"))
    events = (await house.chat(stream=True)).events
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    assert len({(event["id"], event["created"]) for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:-1] == [{"content": "a"}, {"content": "b"}, {"content": "c"}]
    assert deltas[-1] == {}
    assert all("usage" not in event for event in events)


async def test_logprobs_have_exact_bytes(make_house: Make) -> None:
    house: House = await make_house()
    script = Script(token_ids=text_ids("aé"), stop_token_id=266)
    house.script(script, script)
    plain = (await house.chat(logprobs=True, top_logprobs=2)).json["choices"][0]
    streamed = await house.chat(logprobs=True, top_logprobs=2, stream=True)
    content = plain["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[97], [0xC3], [0xA9]]
    assert [entry["token"] for entry in content] == ["a", "\\xc3", "\\xa9"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "aé"
    assert content[0]["top_logprobs"] == [
        {"token": "\x01", "logprob": -0.5, "bytes": [1]},
        {"token": "\x02", "logprob": -1.5, "bytes": [2]},
    ]
    for event in streamed.events:
        for choice in event["choices"]:
            if choice["logprobs"]:
                raw = bytes(b for entry in choice["logprobs"]["content"] for b in entry["bytes"])
                assert raw.decode() == choice["delta"]["content"]


@pytest.mark.case("B7")
@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}])
@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_without_alternatives(make_house: Make, stream: bool, fields: dict[str, int]) -> None:
    house: House = await make_house()
    house.say(text_ids("a"))
    content = logprobs_of(await house.chat(logprobs=True, stream=stream, **fields))
    assert [(entry["logprob"], entry["top_logprobs"]) for entry in content] == [(-0.25, [])]


@pytest.mark.case("B8")
@pytest.mark.parametrize("per_step", [1, 3, 100])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_token_has_its_own_alternatives(make_house: Make, stream: bool, per_step: int) -> None:
    """However many tokens the engine tells at once, and with characters that go over token borders."""
    house: House = await make_house()
    text = "né 漢!"
    ids = text_ids(text)
    tops = [((i, -0.1 * (i + 1)), (i + 32, -5.0)) for i in range(len(ids))]
    house.script(Script(token_ids=ids, stop_token_id=266, per_step=per_step, tops=tops))
    reply = await house.chat(logprobs=True, top_logprobs=2, stream=stream)
    content = logprobs_of(reply)
    assert reply.text == text
    assert b"".join(bytes(entry["bytes"]) for entry in content) == text.encode()
    assert [[top["bytes"] for top in entry["top_logprobs"]] for entry in content] == [
        [[i], [i + 32]] for i in range(len(ids))
    ]
    assert [entry["top_logprobs"][0]["logprob"] for entry in content] == [top[0][1] for top in tops]


def logprobs_of(reply: Reply) -> list[dict[str, Any]]:
    """Entries of a streamed or plain answer's one choice; in every chunk they make up its text."""
    entries = []
    for part in reply.events if reply.is_stream else [reply.json]:
        (choice,) = part["choices"]
        found = (choice["logprobs"] or {}).get("content", [])
        shown = (choice.get("message") or choice["delta"]).get("content", "")
        assert b"".join(bytes(entry["bytes"]) for entry in found).decode() == shown
        entries += found
    return entries


@pytest.mark.case("C6")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 1}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"), ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"), ({"n": 5_000_000}, "n"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 0}, "max_tokens"),
    ],
)  # fmt: skip
async def test_caps(make_house: Make, fields: dict[str, Any], param: str) -> None:
    house: House = await make_house()
    assert (await house.chat(**fields)).error["param"] == param
    assert not house.engine.record.submitted


@pytest.mark.case("C9")
async def test_the_answer_may_fill_the_window_by_default(make_house: Make) -> None:
    house: House = await make_house()
    await house.chat()
    add = house.engine.record.submitted[-1]
    assert add.sampling.max_tokens == 256 - len(add.prompt_token_ids)


async def test_max_completion_tokens_goes_before_max_tokens(make_house: Make) -> None:
    house: House = await make_house()
    await house.chat(max_tokens=9, max_completion_tokens=5)
    assert house.engine.record.submitted[-1].sampling.max_tokens == 5
