"""What the model sees of a chat: tools in its family's form or in text, variables, continuing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway import families
from tests.gateway.house import TEMPLATE, House
from tests.gateway.test_openai_tools import F, tool

Make = Callable[..., Any]
TOOLS = [tool(**F), tool(name="g")]
USER = {"role": "user", "content": "Hi"}
HISTORY = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_0123456789", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
    {"role": "tool", "tool_call_id": "call_0123456789", "content": [{"type": "text", "text": "42"}]},
]  # fmt: skip


async def prompt_of(house: House, **body: Any) -> str:
    """Through /tokenize and back, special tokens by name."""
    body.setdefault("messages", [USER])
    reply = await house.request("POST", "/tokenize", json=body)
    assert reply.status == 200, reply.body
    tokens = reply.json["tokens"]
    back = await house.request("POST", "/detokenize", json={"tokens": tokens})
    return str(back.json["prompt"])


@pytest.fixture
async def thinking(make_house: Make) -> House:
    made: House = await make_house(info={"chat_template": families.THINKING, "max_model_len": 4096})
    return made


@pytest.mark.parametrize(
    ("family", "call", "result"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>',
         "<tool_response>42</tool_response>"),
        ("llama3_json", '{"name": "f", "parameters": {"x": 1}}', '[ipython]"42"'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]', "[TOOL_RESULTS]42[/TOOL_RESULTS]"),
        ("pythonic", "[f(x=1)]", "<tool>42"),
    ],
)  # fmt: skip
async def test_a_familys_own_template_shows_tools_calls_and_results(
    make_house: Make, family: str, call: str, result: str
) -> None:
    house: House = await make_house(info={"chat_template": families.TEMPLATES[family], "max_model_len": 4096})
    prompt = await prompt_of(house, messages=HISTORY, tools=TOOLS)
    assert call in prompt
    assert result in prompt
    with_tools = await prompt_of(house, tools=TOOLS)
    assert "does f" in with_tools
    assert '"integer"' in with_tools
    assert "does f" not in await prompt_of(house)


async def test_a_template_that_wants_arguments_as_text_gets_text(make_house: Make) -> None:
    template = (
        "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name + '(' + c.function.arguments + ')' }}"
        "{% endfor %}{% endfor %}"
    )
    house: House = await make_house(info={"chat_template": template})
    assert await prompt_of(house, messages=HISTORY) == 'Hif({"x": 1})42'


async def test_ids_are_given_the_form_that_mistrals_templates_take(make_house: Make) -> None:
    """An id that another server gave does not end the conversation."""
    template = families.MISTRAL.replace("{{- call.function", "{{ call.id }}={{- call.function")
    template = template.replace("'[TOOL_RESULTS]'", "'[TOOL_RESULTS]' + m.tool_call_id + '='")
    house: House = await make_house(info={"chat_template": template})
    prompt = await prompt_of(house, messages=HISTORY)
    call_id = prompt.partition("[TOOL_RESULTS]")[2].partition("=")[0]
    assert len(call_id) == 9
    assert f"{call_id}={{" in prompt


async def test_in_text_the_description_joins_the_users_own_system_message(make_house: Make) -> None:
    house: House = await make_house(info={"max_model_len": 4096})
    system = {"role": "system", "content": "Be brief."}
    prompt = await prompt_of(house, messages=[system, *HISTORY], tools=TOOLS)
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call the functions below")
    assert '{"name": "f", "description": "does f", "parameters": {"type": "object", ' in prompt
    assert '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><|im_end|>' in prompt
    assert prompt.endswith(
        "<|im_start|>user\n<tool_response>42</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.count("<|im_start|>system") == 1
    alone = await prompt_of(house, tools=TOOLS)
    assert alone.startswith("<|im_start|>system\nYou can call")
    assert "system" not in await prompt_of(house)


async def test_in_text_a_template_without_system_messages_gets_it_from_the_user(make_house: Make) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('No system messages.') }}{% endif %}"
    house: House = await make_house(info={"chat_template": refusing + TEMPLATE, "max_model_len": 4096})
    prompt = await prompt_of(house, tools=TOOLS)
    assert prompt.startswith("<|im_start|>user\nYou can call")
    assert prompt.endswith("without any.\n\nHi<|im_end|>\n<|im_start|>assistant\n")
    own = [{"role": "system", "content": "Be brief."}, USER]
    reply = await house.chat(messages=own, tools=TOOLS)
    assert (reply.status, reply.error["message"]) == (400, "No system messages.")


async def test_tools_that_may_not_be_called_are_not_shown(make_house: Make) -> None:
    house: House = await make_house(info={"chat_template": families.HERMES, "max_model_len": 4096})
    await house.chat(tools=TOOLS, tool_choice="none")
    assert (
        "does f"
        not in bytes(i for i in house.engine.record.submitted[-1].prompt_token_ids if i < 256).decode()
    )


@pytest.mark.parametrize(
    ("fields", "tail"),
    [
        ({}, "assistant\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>\n\n"),
        ({"chat_template_kwargs": {"unheard_of": {"a": [1]}}}, "assistant\n"),
        ({"reasoning_effort": "low"}, "effort=low\n<|im_start|>assistant\n"),
        ({"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "mine"}},
         "effort=mine\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "Hi<|im_end|>\n"),
    ],
)  # fmt: skip
async def test_variables_of_the_template(thinking: House, fields: dict[str, Any], tail: str) -> None:
    assert (await prompt_of(thinking, **fields)).endswith(tail)


async def test_thoughts_of_earlier_answers_reach_the_template(thinking: House) -> None:
    for name in ("reasoning_content", "reasoning"):
        answer = {"role": "assistant", "content": "a", name: "hm"}
        assert "<think>hm</think>a" in await prompt_of(thinking, messages=[USER, answer, USER])


async def test_the_final_message_is_continued(thinking: House) -> None:
    messages = [USER, {"role": "assistant", "content": "It is "}]
    prompt = await prompt_of(thinking, messages=messages, continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\nIt is ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": HISTORY[:2], "continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {str(i): 0 for i in range(65)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ],
)  # fmt: skip
async def test_what_cannot_be_rendered_so_is_refused(
    thinking: House, fields: dict[str, Any], param: str
) -> None:
    reply = await thinking.chat(**fields)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert not thinking.engine.record.submitted


async def test_a_template_that_hides_the_final_message_cannot_continue_it(make_house: Make) -> None:
    house: House = await make_house(info={"chat_template": "x"})
    messages = [USER, {"role": "assistant", "content": "a"}]
    assert (await house.chat(messages=messages, continue_final_message=True)).error[
        "param"
    ] == "continue_final_message"


@pytest.mark.case("D3")
@pytest.mark.parametrize(
    ("family", "messages", "said"),
    [
        ("mistral", [{"role": "system", "content": "x"}, USER],
         "Only user, assistant and tool messages, please."),
        ("llama3_json", [USER, {"role": "assistant", "tool_calls": HISTORY[1]["tool_calls"] * 2}],
         "This model calls one tool at a time."),
        ("pythonic", [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f",
         "arguments": "no json"}}]}],
         "The chat template cannot handle these messages (UndefinedError)."),
    ],
)  # fmt: skip
async def test_templates_refuse_in_their_own_words(
    make_house: Make, family: str, messages: list[Any], said: str
) -> None:
    house: House = await make_house(info={"chat_template": families.TEMPLATES[family]})
    reply = await house.chat(messages=messages)
    assert reply.status == 400
    assert reply.error["param"] == "messages"
    if family != "pythonic":
        assert reply.error["message"] == said
    await house.check_alive()
