"""Holds answers against the official client's own models: nothing missing, nothing besides, no other type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

# What we tell beyond OpenAI's fields.
OURS = {
    "max_model_len", "capabilities", "reasoning_content", "reasoning", "prompt_logprobs", "service_tier",
    "store",
}  # fmt: skip
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def check_answer(path: str, answer: Any) -> None:
    """A whole answer to a POST."""
    if path == "/v1/chat/completions":
        _check(ChatCompletion, answer)
        return
    _without_first_nulls(answer)
    _check(Completion, answer)


def check_chunk(path: str, chunk: Any) -> None:
    """A part of a streamed answer."""
    if path == "/v1/chat/completions":
        _check(ChatCompletionChunk, chunk)
        return
    for choice in chunk["choices"]:  # the client's model of a completion is that of a whole one
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    if chunk.get("usage", 0) is None:
        del chunk["usage"]
    _without_first_nulls(chunk)
    _check(Completion, chunk)


def _without_first_nulls(answer: Any) -> None:
    """OpenAI knows nothing of an echoed prompt's first token, which its client's model does not know."""
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        if logprobs and logprobs["token_logprobs"] and logprobs["token_logprobs"][0] is None:
            assert logprobs["top_logprobs"][0] is None
            for values in logprobs.values():
                del values[0]


def check_response(response: Any) -> None:
    """A Response object."""
    _check(Response, response)


def check_event(event: Any) -> None:
    """An event of a streamed response.

    The client for Python has ``bytes`` of log probabilities in whole items only, and no ``name`` of a call
    where its arguments end; that for node has one.
    """
    parsed = _EVENT.validate_python(event, strict=True)
    assert set(_unknown(parsed)) <= {*OURS, "bytes", "name"}, event


def check_items(page: Any) -> None:
    """A page of items."""
    assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
    for item in page["data"]:
        parsed = _ITEM.validate_python(item, strict=True)
        assert set(_unknown(parsed)) <= OURS, item


def check_probe(path: str, answer: Any) -> None:
    """What ``/v1/models`` and the paths below it tell."""
    for card in answer["data"] if path == "/v1/models" else [answer]:
        _check(Model, card)


def check_conversation(answer: Any) -> None:
    """What any call of ``/v1/conversations`` tells."""
    kinds = {
        "conversation": Conversation,
        "conversation.deleted": ConversationDeletedResource,
        "list": ConversationItemList,
    }
    shown = answer if "object" in answer else {"object": "list", "data": [answer], **_ONE_ITEM}
    if shown.get("data") == []:
        shown = {**shown, "first_id": "", "last_id": ""}  # null, of which the client's types know nothing
    _check(kinds[shown["object"]], shown)


_ONE_ITEM = {"first_id": "", "last_id": "", "has_more": False}


def _check(model: type[BaseModel], value: Any) -> None:
    parsed = model.model_validate(value, strict=True)
    assert set(_unknown(parsed)) <= OURS, value


def _unknown(value: Any) -> Iterator[str]:
    """Names of fields that the models do not have, at any depth."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _unknown(item)
