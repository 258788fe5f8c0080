"""How a response is kept, and which KV is its own when it is deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError, ErrorKind
from gateway.openai.responses import building
from gateway.openai.responses.endpoint import ResponsesEndpoint
from gateway.openai.responses.items import Item, MessageItem, OutputText
from gateway.openai.responses.shape import ResponseObject
from gateway.openai.responses.wire import ResponseWire
from gateway.responses.keeping import Making, as_record, decoded, keeping, purge_of
from gateway.responses.records import (
    ConversationFullError,
    DuplicateItemError,
    HistoryGoneError,
    ItemRecord,
    ResponseRecord,
    StateFullError,
)
from tests.gateway.house import IM_END, House, text_ids

Make = Callable[..., Awaitable[House]]


@pytest.fixture
async def endpoint(make_house: Make) -> ResponsesEndpoint:
    house = await make_house(info={"max_model_len": 2048, "num_blocks": 256})
    return ResponsesEndpoint(house.gateway.model, house.gateway.chat)


def kept(
    endpoint: ResponsesEndpoint, history: Sequence[ItemRecord] = (), said: str = "Fine.", **fields: Any
) -> ResponseRecord:
    """A turn that was answered."""
    wire = endpoint.decode(msgspec.json.encode({"input": "Hi", **fields}))
    request = endpoint.check(wire, decoded(history))
    draft = building.draft(request, "resp_1", 7, "tiny", "default")
    output: list[Any] = (
        [MessageItem(id="msg_o", role="assistant", content=[OutputText(said)])] if said else []
    )
    response = building.completed(draft, output, None, 8)
    return as_record(response, request, "acme", "session", [*text_ids(said), IM_END])


def shown(record: ResponseRecord) -> ResponseObject:
    return msgspec.json.decode(record.body, type=ResponseObject)


def wire_of(record: ResponseRecord) -> ResponseWire:
    return msgspec.json.decode(record.making, type=Making).request


def text(token_ids: Sequence[int]) -> str:
    return bytes(i for i in token_ids if i < 256).decode()


async def test_a_record_has_all_that_the_response_was(endpoint: ResponsesEndpoint) -> None:
    record = kept(endpoint, previous_response_id="resp_0", metadata={"a": "b"})
    assert (record.id, record.tenant, record.session, record.status) == (
        "resp_1", "acme", "session", "completed",
    )  # fmt: skip
    assert (record.previous_id, record.conversation_id) == ("resp_0", None)
    assert shown(record).metadata == {"a": "b"}
    items: list[Item] = decoded((*record.inputs, *record.outputs))
    assert [item.role for item in items if isinstance(item, MessageItem)] == ["user", "assistant"]
    assert [item.id for item in items] == [part.id for part in (*record.inputs, *record.outputs)]


async def test_the_request_is_kept_without_its_input(endpoint: ResponsesEndpoint) -> None:
    sent = {"instructions": "Be kind.", "prompt_cache_options": {"ttl": "5m"}, "temperature": 0.5}
    wire = wire_of(kept(endpoint, conversation="conv_1", **sent))
    assert wire.input is None
    assert (wire.instructions, wire.temperature, wire.conversation) == ("Be kind.", 0.5, "conv_1")


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**300])
async def test_numbers_of_any_size_are_kept(endpoint: ResponsesEndpoint, number: int) -> None:
    schema = {"type": "object", "properties": {"x": {"maximum": number}}}
    tool = {"type": "function", "name": "f", "parameters": schema}
    record = kept(endpoint, chat_template_kwargs={"x": number}, tools=[tool], tool_choice="none")
    wire = wire_of(record)
    assert wire.chat_template_kwargs == {"x": number}
    assert shown(record).tools[0].parameters == schema


async def test_what_is_purged_is_the_turn_and_not_what_was_before_it(endpoint: ResponsesEndpoint) -> None:
    first = kept(endpoint, input="Hi", said="Hello.")
    before = (*first.inputs, *first.outputs)
    second = kept(endpoint, before, input="How are you?", said="Fine.")
    history = (*before, *second.inputs, *second.outputs)
    purge = purge_of(second, history, endpoint)
    assert purge is not None
    assert purge.token_ids[-6:] == (*text_ids("Fine."), IM_END)
    assert "Hello." in text(purge.token_ids[: purge.from_token])
    assert "How are you?" in text(purge.token_ids[purge.from_token :])
    assert "How" not in text(purge.token_ids[: purge.from_token])


async def test_of_the_first_turn_all_is_purged(endpoint: ResponsesEndpoint) -> None:
    record = kept(endpoint, instructions="Be kind.")
    purge = purge_of(record, (*record.inputs, *record.outputs), endpoint)
    assert purge is not None
    assert purge.from_token == 0
    assert "Be kind." in text(purge.token_ids)
    assert "Fine." in text(purge.token_ids)


async def test_a_turn_that_was_only_prepared_is_purged_as_it_was(endpoint: ResponsesEndpoint) -> None:
    record = kept(endpoint, said="", generate=False)
    purge = purge_of(record, record.inputs, endpoint)
    assert purge is not None
    assert text(purge.token_ids).endswith("Hi\n")


async def test_what_another_model_would_make_of_it_is_not_purged(
    endpoint: ResponsesEndpoint, make_house: Make
) -> None:
    record = kept(endpoint, input="x" * 500)
    house = await make_house()  # whose window is too small for it
    other = ResponsesEndpoint(house.gateway.model, house.gateway.chat)
    assert purge_of(record, (*record.inputs, *record.outputs), other) is None


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (HistoryGoneError(), ErrorKind.PREVIOUS_NOT_FOUND, "previous_response_id"),
        (ConversationFullError(), ErrorKind.BAD_REQUEST, "conversation"),
        (DuplicateItemError("msg_1"), ErrorKind.BAD_REQUEST, "input"),
        (StateFullError(), ErrorKind.HISTORY_TOO_LARGE, None),
    ],
)
def test_what_the_store_cannot_do_is_told(error: Exception, kind: ErrorKind, param: str | None) -> None:
    with pytest.raises(ApiError) as caught, keeping():
        raise error
    assert (caught.value.kind, caught.value.param) == (kind, param)
