"""LangChain's ChatOpenAI and litellm: they stream, and bind tools and schemas, through the live server."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or importing it looks for prices in the net

import pydantic

from tests.clients.conftest import KEY, MODEL
from tests.support.server import Server

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]  # theirs, about themselves
QUESTION = "Name three primary colors."


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: Literal["Paris", "London"]
    unit: Literal["C", "F"]


# ---- LangChain -----------------------------------------------------------------------------------


def langchain(server: Server, **fields: Any) -> Any:
    from langchain_openai import ChatOpenAI

    options = {"model": MODEL, "temperature": 0, "max_tokens": 60, "max_retries": 0, **fields}
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key=KEY, **options)


def test_langchain_streams_what_it_is_told_plain(server: Server) -> None:
    chat = langchain(server, stream_usage=True)
    whole = chat.invoke(QUESTION)
    pieces = list(chat.stream(QUESTION))
    assert len(pieces) > 3
    assert "".join(piece.content for piece in pieces) == whole.content
    assert "red" in whole.content.lower()
    gathered = sum(pieces[1:], start=pieces[0])
    assert gathered.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert gathered.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"] == "stop"


async def test_langchain_streams_side_by_side(server: Server) -> None:
    chat = langchain(server, max_tokens=12)

    async def stream(number: int) -> str:
        return "".join([piece.content async for piece in chat.astream(f"Say the number {number}.")])

    assert all(await asyncio.gather(*(stream(number) for number in range(4))))


def test_langchain_takes_a_conversation_of_every_role(server: Server) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    history = [SystemMessage("Be brief."), HumanMessage("Hi"), AIMessage("Hello."), HumanMessage(QUESTION)]
    assert langchain(server).invoke(history).content


def test_langchain_binds_tools(server: Server) -> None:
    chat = langchain(server, max_tokens=100).bind_tools([Weather], tool_choice="Weather")
    (call,) = chat.invoke("Is it warm in Paris?").tool_calls
    assert call["name"] == "Weather"
    assert Weather(**call["args"])
    pieces = list(chat.stream("Is it warm in Paris?"))
    gathered = sum(pieces[1:], start=pieces[0])
    assert gathered.tool_calls[0]["args"] == call["args"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_structured_output(server: Server, method: str) -> None:
    chat = langchain(server, max_tokens=100).with_structured_output(Weather, method=method)
    assert isinstance(chat.invoke("Is it warm in Paris?"), Weather)


def responses_langchain(server: Server, **fields: Any) -> Any:
    return langchain(server, use_responses_api=True, **{"max_tokens": 20, **fields})


def test_langchain_streams_responses(server: Server) -> None:
    chat = responses_langchain(server)
    whole = chat.invoke(QUESTION)
    pieces = list(chat.stream(QUESTION))
    gathered = sum(pieces[1:], start=pieces[0])
    assert gathered.text == whole.text
    assert "red" in whole.text.lower()
    assert whole.response_metadata["id"].startswith("resp_")
    assert gathered.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_langchain_goes_on_from_a_response(server: Server) -> None:
    from langchain_core.messages import HumanMessage

    chat = responses_langchain(server, use_previous_response_id=True)
    history: list[Any] = [HumanMessage(QUESTION)]
    history.append(chat.invoke(history))
    later = chat.invoke([*history, HumanMessage("And one more?")])
    alone = responses_langchain(server).invoke([*history, HumanMessage("And one more?")])
    assert later.text == alone.text
    assert later.usage_metadata["input_tokens"] == alone.usage_metadata["input_tokens"]


def test_langchain_binds_tools_to_responses(server: Server) -> None:
    chat = responses_langchain(server, max_tokens=100).bind_tools([Weather], tool_choice="Weather")
    (call,) = chat.invoke("Is it warm in Paris?").tool_calls
    assert Weather(**call["args"])
    pieces = list(chat.stream("Is it warm in Paris?"))
    assert sum(pieces[1:], start=pieces[0]).tool_calls[0]["args"] == call["args"]


def test_langchain_gets_structured_responses(server: Server) -> None:
    chat = responses_langchain(server, max_tokens=100).with_structured_output(Weather, method="json_schema")
    assert isinstance(chat.invoke("Is it warm in Paris?"), Weather)


# ---- litellm -------------------------------------------------------------------------------------


def litellm_options(server: Server, **fields: Any) -> dict[str, Any]:
    return {
        "model": f"openai/{MODEL}", "api_base": f"{server.url}/v1", "api_key": KEY, "temperature": 0,
        "max_tokens": 60, "num_retries": 0, "messages": [{"role": "user", "content": QUESTION}], **fields,
    }  # fmt: skip


def test_litellm_streams_what_it_is_told_plain(server: Server) -> None:
    import litellm

    whole = litellm.completion(**litellm_options(server))
    chunks = list(
        litellm.completion(**litellm_options(server, stream=True, stream_options={"include_usage": True}))
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert "red" in text.lower()
    assert len(chunks) > 3
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["stop"]


async def test_litellm_streams_for_async_too(server: Server) -> None:
    import litellm

    stream = await litellm.acompletion(**litellm_options(server, stream=True, max_tokens=12))
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_litellm_knows_our_errors(server: Server) -> None:
    import litellm

    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**litellm_options(server, temperature=3))
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**litellm_options(server, messages=[{"role": "user", "content": "word " * 4000}]))


def test_litellm_gathers_streamed_tool_calls(server: Server) -> None:
    import litellm

    tool = {"type": "function", "function": {"name": "weather", "parameters": Weather.model_json_schema()}}
    options = litellm_options(server, tools=[tool], tool_choice="required", stream=True, max_tokens=100)
    whole = litellm.stream_chunk_builder(list(litellm.completion(**options)))
    call = whole.choices[0].message.tool_calls[0]
    assert call.function.name == "weather"
    assert Weather(**json.loads(call.function.arguments))
    assert whole.choices[0].finish_reason == "tool_calls"


def test_litellm_gets_structured_output(server: Server) -> None:
    import litellm

    answer = litellm.completion(**litellm_options(server, response_format=Weather, max_tokens=100))
    assert Weather.model_validate_json(answer.choices[0].message.content)


def litellm_response(server: Server, **fields: Any) -> Any:
    import litellm

    return litellm.responses(
        model=f"openai/{MODEL}",
        api_base=f"{server.url}/v1",
        api_key=KEY,
        temperature=0,
        max_output_tokens=20,
        **fields,
    )


def test_litellm_streams_responses(server: Server) -> None:
    whole = litellm_response(server, input=QUESTION)
    events = list(litellm_response(server, input=QUESTION, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert "red" in text.lower()
    assert events[-1].type == "response.completed"


def test_litellm_goes_on_from_a_response(server: Server) -> None:
    first = litellm_response(server, input=QUESTION)
    second = litellm_response(server, input="And one more?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
