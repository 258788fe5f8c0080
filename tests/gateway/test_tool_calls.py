"""Tool calls and thoughts over HTTP: streamed and plain alike, of every family, beside the rest."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from engine.messages import FinishReason
from engine.scripted import Script
from tests.gateway import families
from tests.gateway.house import IM_END, House, Reply, text_ids
from tests.gateway.test_openai_tools import F, tool
from tests.support.tiny_tokenizers import byte_level, save

Make = Callable[..., Any]
TOOLS = [tool(**F), tool(name="g")]
CALL_F, CALL_G = {"name": "f", "arguments": '{"x": "é"}'}, {"name": "g", "arguments": "{}"}


async def open_family(make_house: Make, family: str = "hermes", **options: Any) -> House:
    info = {"chat_template": families.TEMPLATES.get(family, family), "max_model_len": 8192}
    house: House = await make_house(info=info, **options)
    return house


def accumulated(reply: Reply) -> dict[int, dict[str, Any]]:
    """Choices of a stream as clients put them together, with what must hold of each delta."""
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: {"message": {}, "finish_reason": None})
    for event in reply.events:
        for part in event["choices"]:
            choice = choices[part["index"]]
            assert choice["finish_reason"] is None, "something after the end"
            choice["finish_reason"] = part["finish_reason"]
            delta = part["delta"]
            assert len(delta.keys() - {"reasoning", "role"}) <= 1, "one kind of thing in a delta"
            for key, value in delta.items():
                if key == "tool_calls":
                    _add_call(choice["message"].setdefault("tool_calls", []), value)
                elif key == "function_call":
                    old = choice["message"].setdefault(
                        "function_call", {"name": value.get("name"), "arguments": ""}
                    )
                    old["arguments"] += value["arguments"]
                elif value is not None:
                    choice["message"][key] = choice["message"].get(key, "") + value
            if part["logprobs"]:
                tokens = [entry["token"] for entry in part["logprobs"]["content"]]
                choice.setdefault("tokens", []).extend(tokens)
    return choices


def _add_call(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    assert len(deltas) == 1
    (delta,) = deltas
    if delta["index"] == len(calls):
        assert delta["type"] == "function"
        assert delta["function"]["arguments"] == ""
        calls.append({"id": delta["id"], "type": "function", "function": dict(delta["function"])})
    else:
        assert delta["index"] == len(calls) - 1, "calls come one after the other"
        assert delta.keys() == {"index", "function"}
        assert delta["function"].keys() == {"arguments"}
        calls[-1]["function"]["arguments"] += delta["function"]["arguments"]


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without what is random, and without what a stream leaves out when there is none."""
    kept = {key: value for key, value in message.items() if value not in (None, "")}
    if "tool_calls" in kept:
        kept["tool_calls"] = [call["function"] for call in kept["tool_calls"]]
    return kept


async def both_ways(house: House, script: Script, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plain answer's choice, and the message of the streamed one, which must agree."""
    house.script(script, script)
    plain = await house.chat(**body)
    assert plain.status == 200, plain.body
    (choice,) = plain.json["choices"]
    streamed = accumulated(await house.chat(stream=True, **body))[0]
    assert comparable(streamed["message"]) == comparable(choice["message"])
    assert streamed["finish_reason"] == choice["finish_reason"]
    if "tokens" in streamed:
        assert streamed["tokens"] == [entry["token"] for entry in choice["logprobs"]["content"]]
    return choice, streamed["message"]


def saying(text: str, **fields: Any) -> Script:
    return Script(token_ids=text_ids(text), stop_token_id=IM_END, **fields)


@pytest.mark.case("D7")
@pytest.mark.parametrize("per_step", [1, 7, 1000])
@pytest.mark.parametrize("family", sorted(families.ANSWERS))
async def test_two_calls_of_each_family(make_house: Make, family: str, per_step: int) -> None:
    house = await open_family(make_house, family)
    script = saying(families.ANSWERS[family], per_step=per_step)
    choice, _ = await both_ways(house, script, tools=TOOLS)
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["f", "g"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"x": "é"}, {}]
    assert len({call["id"] for call in calls}) == 2
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    await house.check_alive()


@pytest.mark.case("D2")
@pytest.mark.case("D7")
async def test_ids_are_the_same_in_all_deltas_and_go_back_to_the_template(make_house: Make) -> None:
    house = await open_family(make_house, "mistral")
    house.script(saying(families.ANSWERS["mistral"]))
    calls = accumulated(await house.chat(stream=True, tools=TOOLS))[0]["message"]["tool_calls"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in calls]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
    ]
    assert (await house.chat(messages=messages, tools=TOOLS)).status == 200


async def test_marks_that_are_special_tokens_reach_the_parser(make_house: Make, tmp_path: Any) -> None:
    """Special tokens are no text, but for those that are the family's marks, when tools are offered."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    mark, arguments = tokenizer.token_to_id("[TOOL_CALLS]"), tokenizer.token_to_id("[ARGS]")
    house: House = await make_house(
        tokenizer_dir=save(tokenizer, tmp_path),
        info={"chat_template": families.MISTRAL, "max_model_len": 8192},
    )
    ids = (
        mark,
        *text_ids("f"),
        arguments,
        *text_ids('{"x": 1}'),
        mark,
        *text_ids("g"),
        arguments,
        *text_ids("{}"),
    )
    choice, _ = await both_ways(house, Script(token_ids=ids, stop_token_id=IM_END), tools=TOOLS)
    assert comparable(choice["message"])["tool_calls"] == [{"name": "f", "arguments": '{"x": 1}'}, CALL_G]
    choice, _ = await both_ways(house, Script(token_ids=ids, stop_token_id=IM_END))
    assert choice["message"]["content"] == 'f{"x": 1}g{}'


async def test_the_text_form_works_on_a_template_without_tools(make_house: Make) -> None:
    house = await open_family(make_house, families.THINKING)
    choice, _ = await both_ways(house, saying("Sure.\n" + families.ANSWERS["hermes"]), tools=TOOLS)
    assert choice["message"]["content"] == "Sure."
    assert comparable(choice["message"])["tool_calls"] == [CALL_F, CALL_G]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        "<tool_call>{oh",
        "<tool_call>",
        "a <tool",
    ],
)
async def test_what_is_no_call_is_content(make_house: Make, text: str) -> None:
    house = await open_family(make_house)
    choice, _ = await both_ways(house, saying(text), tools=TOOLS)
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_without_tools_or_with_choice_none_calls_are_text(make_house: Make) -> None:
    house = await open_family(make_house)
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        choice, _ = await both_ways(house, saying(families.ANSWERS["hermes"]), **fields)
        assert choice["message"]["content"] == families.ANSWERS["hermes"]
        assert choice["finish_reason"] == "stop"


async def test_a_call_cut_short_ends_by_length(make_house: Make) -> None:
    house = await open_family(make_house)
    cut = families.ANSWERS["hermes"].index('"é"')
    choice, _ = await both_ways(house, saying(families.ANSWERS["hermes"]), tools=TOOLS, max_tokens=cut)
    assert comparable(choice["message"])["tool_calls"] == [{"name": "f", "arguments": '{"x": '}]
    assert choice["finish_reason"] == FinishReason.LENGTH.value


async def test_without_parallel_calls_the_answer_ends_at_the_second(make_house: Make) -> None:
    house = await open_family(make_house)
    script = Script(token_ids=text_ids(families.ANSWERS["hermes"] + " "), endless=True)
    choice, _ = await both_ways(house, script, tools=TOOLS, parallel_tool_calls=False)
    assert comparable(choice["message"])["tool_calls"] == [CALL_F]
    assert choice["finish_reason"] == "tool_calls"
    assert len(house.engine.record.aborted) == 2
    await house.idle()


# ---- calls that are forced ----


@pytest.mark.parametrize(
    ("choice", "text", "calls", "reason"),
    [
        ({"type": "function", "function": {"name": "f"}}, '{"x": "é"}', [CALL_F], "stop"),
        ("required", '[{"name": "f", "arguments": {"x": "é"}}, {"name": "g", "arguments": {}}]',
         [CALL_F, CALL_G], "tool_calls"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function",
         "function": {"name": "g"}}]}},
         '[{"name":"g","arguments":{}}]', [CALL_G], "tool_calls"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "family", ["mistral", "hermes", families.THINKING_OPENED, families.ALWAYS_THINKING],
    ids=["mistral", "hermes", "thinking", "always_thinking"],
)  # fmt: skip
async def test_a_forced_call_has_a_grammar_and_a_parser_of_its_own(
    make_house: Make, family: str, choice: Any, text: str, calls: list[Any], reason: str
) -> None:
    house = await open_family(make_house, family)
    found, _ = await both_ways(house, saying(text), tools=TOOLS, tool_choice=choice)
    assert comparable(found["message"]) == {"role": "assistant", "tool_calls": calls}
    assert found["finish_reason"] == reason
    grammar = house.engine.record.submitted[-1].sampling.grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"
    prompt = bytes(i for i in house.engine.record.submitted[-1].prompt_token_ids if i < 256).decode()
    assert not prompt.endswith("<think>\n")


async def test_a_choice_that_is_not_forced_has_no_grammar(make_house: Make) -> None:
    house = await open_family(make_house)
    await house.chat(tools=TOOLS)
    assert house.engine.record.submitted[-1].sampling.grammar is None


async def test_beams_do_not_go_with_a_forced_call(make_house: Make) -> None:
    house = await open_family(make_house)
    reply = await house.chat(tools=TOOLS, tool_choice="required", use_beam_search=True, n=2)
    assert (reply.status, reply.error["param"]) == (400, "use_beam_search")


# ---- the deprecated form ----


async def test_functions_are_answered_in_the_old_form(make_house: Make) -> None:
    house = await open_family(make_house)
    choice, _ = await both_ways(house, saying(families.ANSWERS["hermes"]), functions=[F, {"name": "g"}])
    assert choice["message"]["function_call"] == CALL_F
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    choice, _ = await both_ways(house, saying('{"x": "é"}'), functions=[F], function_call={"name": "f"})
    assert choice["message"]["function_call"] == CALL_F
    assert choice["finish_reason"] == "stop"


# ---- beside everything else ----


@pytest.mark.case("D7")
async def test_several_answers_have_calls_of_their_own(make_house: Make) -> None:
    house = await open_family(make_house)
    script = saying(
        families.ANSWERS["hermes"], others=[saying("no call"), saying(families.ANSWERS["hermes"])]
    )
    house.script(script, script)
    plain = (await house.chat(tools=TOOLS, n=3)).json["choices"]
    streamed = accumulated(await house.chat(tools=TOOLS, n=3, stream=True))
    assert [choice["finish_reason"] for choice in plain] == ["tool_calls", "stop", "tool_calls"]
    for index, choice in enumerate(plain):
        assert comparable(streamed[index]["message"]) == comparable(choice["message"])
        assert streamed[index]["finish_reason"] == choice["finish_reason"]
    ids = [call["id"] for choice in plain for call in choice["message"].get("tool_calls", [])]
    assert len(set(ids)) == 4


async def test_log_probabilities_are_of_the_content(make_house: Make) -> None:
    house = await open_family(make_house, families.THINKING)
    text = "<think>hm</think>Well, é.\n" + families.ANSWERS["hermes"]
    choice, _ = await both_ways(house, saying(text, per_step=3), tools=TOOLS, logprobs=True, top_logprobs=1)
    raw = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
    assert raw.decode() == choice["message"]["content"] == "Well, é."
    assert len(choice["message"]["tool_calls"]) == 2


async def test_stop_strings_and_usage(make_house: Make) -> None:
    house = await open_family(make_house)
    text = "Well." + families.ANSWERS["hermes"]
    script = Script(token_ids=text_ids(text), endless=True)
    house.script(script, script)
    body = {"tools": TOOLS, "stop": ["</tool_call>\n<"]}
    plain = (await house.chat(**body)).json
    assert comparable(plain["choices"][0]["message"])["tool_calls"] == [CALL_F]
    assert plain["choices"][0]["finish_reason"] == "tool_calls"
    used = len(text[: text.index("</tool_call>")].encode()) + len("</tool_call>\n<")
    assert plain["usage"]["completion_tokens"] == used
    streamed = await house.chat(stream=True, stream_options={"include_usage": True}, **body)
    assert streamed.events[-1]["usage"] == plain["usage"]


# ---- thoughts ----


async def test_thoughts_go_by_both_names_and_are_counted(make_house: Make) -> None:
    house = await open_family(make_house, families.THINKING)
    text = "<think>\nA café?\n</think>\n\nYes."
    script = saying(text)
    choice, streamed = await both_ways(house, script)
    assert choice["message"]["reasoning_content"] == choice["message"]["reasoning"] == "A café?"
    assert choice["message"]["content"] == "Yes."
    assert streamed["reasoning"] == "A café?"
    house.script(script)
    usage = (await house.chat()).json["usage"]
    thought = len(text.partition("</think>")[0].encode()) + len("</think>")
    assert usage["completion_tokens_details"]["reasoning_tokens"] in range(
        thought - len("<think>"), thought + 1
    )
    assert usage["completion_tokens"] == len(text.encode()) + 1


@pytest.mark.parametrize(
    ("template", "text", "thought", "said"),
    [
        (families.ALWAYS_THINKING, "So.\n</think>\n\nHi", "So.", "Hi"),
        (families.THINKING_OPENED, "So.\n</think>\n\nHi", "So.", "Hi"),
        (families.THINKING_OPENED, "So", "So", None),
        (families.THINKING, "<think>So", "So", None), (families.THINKING, "Hi", None, "Hi"),
        (families.THINKING, "<think>\n\n</think>\n\nHi", None, "Hi"),
    ],
)  # fmt: skip
async def test_thoughts_however_they_begin_and_end(
    make_house: Make, template: str, text: str, thought: str | None, said: str | None
) -> None:
    house = await open_family(make_house, template)
    choice, _ = await both_ways(house, saying(text))
    assert choice["message"].get("reasoning_content") == thought
    assert choice["message"]["content"] == said
    assert choice["finish_reason"] == "stop"


async def test_a_prompt_told_not_to_think_has_no_thought(make_house: Make) -> None:
    house = await open_family(make_house, families.THINKING_OPENED)
    choice, _ = await both_ways(house, saying("Hi"), chat_template_kwargs={"enable_thinking": False})
    assert choice["message"] == {"role": "assistant", "content": "Hi", "refusal": None}


async def test_thoughts_can_be_left_out_and_a_continued_one_goes_on(make_house: Make) -> None:
    house = await open_family(
        make_house, families.THINKING.replace("m.content.split('</think>')[-1]", "m.content")
    )
    choice, _ = await both_ways(house, saying("<think>hm</think>Hi"), include_reasoning=False)
    assert choice["message"] == {"role": "assistant", "content": "Hi", "refusal": None}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<think>I"}]
    choice, _ = await both_ways(
        house, saying(" see</think>Hi"), messages=messages, continue_final_message=True
    )
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("see", "Hi")


async def test_the_parser_can_be_chosen(make_house: Make) -> None:
    house = await open_family(make_house, families.THINKING, reasoning_parser="none")
    choice, _ = await both_ways(house, saying("<think>hm</think>Hi"))
    assert choice["message"]["content"] == "<think>hm</think>Hi"
    house = await open_family(make_house, families.HERMES, reasoning_parser="deepseek_r1")
    choice, _ = await both_ways(house, saying("hm</think>Hi"))
    assert choice["message"]["reasoning_content"] == "hm"


# ---- what a server supports ----


@pytest.mark.case("D8")
async def test_a_server_without_a_parser_says_so_before_and_after(make_house: Make) -> None:
    house = await open_family(make_house, tool_call_parser="none")
    card = (await house.request("GET", "/v1/models")).json["data"][0]
    assert card["capabilities"]["tools"] is False
    for fields in ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required"}, {"functions": [F]}):
        error = (await house.chat(**fields)).error
        assert error["param"] in fields
        assert error["code"] == "unsupported_parameter"
        assert "/v1/models" in error["message"]
        assert "--" not in error["message"]
    assert (await house.chat(tools=TOOLS, tool_choice="none")).status == 200


@pytest.mark.case("D8")
@pytest.mark.parametrize(
    ("template", "tools", "tool_parser", "reasoning_parser"),
    [
        (families.MISTRAL, True, "mistral", None), (families.THINKING, True, "hermes", "qwen3"),
        (None, False, None, None),
    ],
)  # fmt: skip
async def test_models_tell_what_is_supported(
    make_house: Make, template: str | None, tools: bool, tool_parser: str | None, reasoning_parser: str | None
) -> None:
    house: House = await make_house(info={"chat_template": template})
    capabilities = (await house.request("GET", "/v1/models/tiny")).json["capabilities"]
    assert capabilities["chat"] is (template is not None)
    assert capabilities["tools"] is tools
    assert capabilities["tool_call_parser"] == tool_parser
    assert capabilities["reasoning_parser"] == reasoning_parser


async def test_a_forced_call_that_is_cut_before_it_begins_says_nothing(make_house: Make) -> None:
    house = await open_family(make_house, "hermes")
    script = Script(token_ids=text_ids('[{"na'), endless=True)
    choice, streamed = await both_ways(house, script, tools=TOOLS, tool_choice="required", max_tokens=5)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert streamed.get("content") is None
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
async def test_what_does_not_go_with_tools_is_named(
    make_house: Make, fields: dict[str, Any], param: str
) -> None:
    house = await open_family(make_house, "hermes")
    reply = await house.chat(tools=TOOLS, **fields)
    assert (reply.status, reply.error["param"]) == (400, param)
