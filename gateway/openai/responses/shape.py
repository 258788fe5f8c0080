"""The Response object, as it is answered and kept.

Pure. Fields that a client did not set are told as they took effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from gateway.openai.notes import one_of
from gateway.openai.responses.items import Item, OutputItem

STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
DELIVERED = frozenset(("completed", "incomplete"))
"""Of these another turn may follow: their text was told, whole or as far as it goes."""

ResponseStatus = Annotated[str, one_of(STATUSES)]


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """Why a response failed. ``code`` is OpenAI's, ``message`` ours."""

    code: Annotated[str, one_of(("server_error", "rate_limit_exceeded", "invalid_prompt"))]
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: Annotated[str, one_of(("max_output_tokens", "steered"))]


class ShownReasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class ShownCacheOptions(msgspec.Struct):
    mode: str
    ttl: str


class ShownConversation(msgspec.Struct):
    id: str


class ShownFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Any text."""


class ShownJson(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class ShownSchema(msgspec.Struct, tag_field="type", tag="json_schema"):
    name: str
    description: str | None
    schema: dict[str, Any] | None
    strict: bool | None


class ShownText(msgspec.Struct):
    format: ShownFormat | ShownJson | ShownSchema
    verbosity: Literal["medium"] = "medium"


class ShownTool(msgspec.Struct, tag_field="type", tag="function"):
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ShownName(msgspec.Struct, tag_field="type", tag="function"):
    """A tool that is to be called, or may be."""

    name: str


class ShownAllowed(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    mode: Annotated[str, one_of(("auto", "required"))]
    tools: list[ShownName]


class ResponseObject(msgspec.Struct, kw_only=True):
    """One answer with all that led to it but its input, which has an address of its own."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: ShownConversation | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: ShownCacheOptions | None = None
    reasoning: ShownReasoning
    safety_identifier: str | None = None
    service_tier: str
    store: bool = True
    temperature: float
    text: ShownText
    tool_choice: str | ShownName | ShownAllowed
    tools: list[ShownTool] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = {}


class DeletedResponse(msgspec.Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(msgspec.Struct):
    """A page of items, which are given as they were kept: encoded already."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


_ENCODER = msgspec.json.Encoder()


def encode(shown: DeletedResponse | ItemList) -> bytes:
    return _ENCODER.encode(shown)


def encode_response(response: ResponseObject) -> bytes:
    return _ENCODER.encode(response)
