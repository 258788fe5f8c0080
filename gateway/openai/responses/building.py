"""The Response object at each stage of its life.

Pure. It is made once, by ``draft``; what becomes of it are copies.
"""

from __future__ import annotations

import msgspec

from gateway.openai.answers import Usage
from gateway.openai.responses.endpoint import ResponseRequest
from gateway.openai.responses.items import OutputItem
from gateway.openai.responses.shape import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
    ShownAllowed,
    ShownCacheOptions,
    ShownConversation,
    ShownFormat,
    ShownJson,
    ShownName,
    ShownReasoning,
    ShownSchema,
    ShownText,
    ShownTool,
)
from gateway.openai.responses.wire import ChosenTool, FunctionTool, ResponseWire, TextConfig

_DEFAULT_TTL = "30m"


def draft(
    request: ResponseRequest, response_id: str, created_at: int, model: str, service_tier: str
) -> ResponseObject:
    """The response before anything has come of it."""
    wire, sampling = request.wire, request.generation.sampling
    conversation_id = request.conversation_id
    return ResponseObject(
        id=response_id,
        created_at=created_at,
        status="queued" if wire.background else "in_progress",
        background=bool(wire.background),
        instructions=wire.instructions,
        max_output_tokens=wire.max_output_tokens,
        max_tool_calls=wire.max_tool_calls,
        model=model,
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        previous_response_id=wire.previous_response_id,
        conversation=None if conversation_id is None else ShownConversation(conversation_id),
        prompt_cache_key=wire.prompt_cache_key,
        prompt_cache_retention=_retention(wire),
        prompt_cache_options=_cache_options(wire),
        reasoning=ShownReasoning(effort=None if wire.reasoning is None else wire.reasoning.effort),
        safety_identifier=wire.safety_identifier,
        service_tier=service_tier,
        store=wire.store is not False,
        temperature=sampling.temperature,
        text=ShownText(_format(wire.text)),
        tool_choice=_choice(wire.tool_choice),
        tools=[_tool(tool) for tool in wire.tools or ()],
        top_logprobs=wire.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=wire.truncation or "disabled",
        user=wire.user,
        metadata=wire.metadata or {},
    )


def completed(
    response: ResponseObject, output: list[OutputItem], usage: ResponseUsage | None, at: int
) -> ResponseObject:
    return msgspec.structs.replace(response, status="completed", completed_at=at, output=output, usage=usage)


def incomplete(
    response: ResponseObject, output: list[OutputItem], usage: ResponseUsage | None, reason: str
) -> ResponseObject:
    return msgspec.structs.replace(
        response,
        status="incomplete",
        output=output,
        usage=usage,
        incomplete_details=IncompleteDetails(reason),
    )


def failed(response: ResponseObject, code: str, message: str) -> ResponseObject:
    """Nothing that came of it counts."""
    return msgspec.structs.replace(response, status="failed", error=ResponseError(code, message), output=[])


def cancelled(response: ResponseObject, usage: ResponseUsage | None) -> ResponseObject:
    """Nothing that came of it counts."""
    return msgspec.structs.replace(response, status="cancelled", output=[], usage=usage)


def response_usage(usage: Usage) -> ResponseUsage:
    """The same figures by the names that they have here."""
    thoughts = usage.completion_tokens_details
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
        usage.completion_tokens,
        OutputTokensDetails(0 if isinstance(thoughts, msgspec.UnsetType) else thoughts.reasoning_tokens),
        usage.total_tokens,
    )


def _cache_options(wire: ResponseWire) -> ShownCacheOptions | None:
    options = wire.prompt_cache_options
    if options is None:
        return None
    return ShownCacheOptions(options.mode or "implicit", options.ttl or _DEFAULT_TTL)


def _retention(wire: ResponseWire) -> str | None:
    """By the one of its two spellings that clients know from answers."""
    return wire.prompt_cache_retention and wire.prompt_cache_retention.replace("-", "_")


def _format(text: TextConfig | None) -> ShownFormat | ShownJson | ShownSchema:
    wanted = None if text is None else text.format
    if wanted is None or wanted.type == "text":
        return ShownFormat()
    if wanted.type == "json_object":
        return ShownJson()
    return ShownSchema(wanted.name or "", wanted.description, wanted.schema, wanted.strict)


def _tool(tool: FunctionTool) -> ShownTool:
    return ShownTool(tool.name or "", tool.description, tool.parameters, tool.strict)


def _choice(choice: str | ChosenTool | None) -> str | ShownName | ShownAllowed:
    if not isinstance(choice, ChosenTool):
        return choice or "auto"
    if choice.type == "function":
        return ShownName(choice.name or "")
    names = [ShownName(tool.name or "") for tool in choice.tools or ()]
    return ShownAllowed(choice.mode or "auto", names)
