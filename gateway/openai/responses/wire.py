"""Wire struct of /v1/responses: what a client may send, over HTTP and in ``response.create`` alike.

Pure. Nothing here is checked beyond its JSON type. The extras of ``SamplingFields`` work here too.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from gateway.openai.chat_prompt import Effort, TemplateVariables
from gateway.openai.notes import Exactly, Ignored, one_of, told
from gateway.openai.ranges import MAX_LOGPROBS, MAX_METADATA, MAX_NAME_CHARS
from gateway.openai.responses.items import Input
from gateway.openai.tools import MAX_DESCRIPTION_CHARS, MAX_TOOLS, NAME_PATTERN
from gateway.openai.wire import Labels, PromptCacheOptions, SamplingFields

INCLUDED_LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (INCLUDED_LOGPROBS, "reasoning.encrypted_content")
_Null = Annotated[Any, Exactly({"type": "null"})]


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[str, one_of(("text", "json_object", "json_schema"))]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None  # a schema is kept to in any case


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Annotated[str, one_of(["medium"])] | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    type: Annotated[str, one_of(["function"])]
    name: Annotated[str | None, told(pattern=NAME_PATTERN)] = None
    description: Annotated[str | None, told(maxLength=MAX_DESCRIPTION_CHARS)] = None
    parameters: Annotated[
        dict[str, Any] | None, told("A JSON schema.", properties={"type": {"const": "object"}})
    ] = None
    strict: bool | None = None


class AllowedTool(msgspec.Struct, kw_only=True):
    type: str = "function"
    name: str | None = None


class ChosenTool(msgspec.Struct, kw_only=True):
    """A function by name, or ``tools`` of which some may (``auto``) or must (``required``) be called."""

    type: Annotated[str, one_of(("function", "allowed_tools"))]
    name: str | None = None
    mode: Annotated[str, one_of(("auto", "required"))] | None = None
    tools: list[AllowedTool] | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True):
    effort: Effort | None = None
    summary: Ignored = None
    generate_summary: Ignored = None


class ConversationRef(msgspec.Struct, kw_only=True):
    id: str


class ResponseCacheOptions(PromptCacheOptions, kw_only=True, forbid_unknown_fields=True):
    """``prewarm``: prepare the KV of this history, and answer nothing."""

    prewarm: bool | None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None  # a padding against traffic analysis; we send none


class ResponseWire(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    input: Input = None
    instructions: str | None = None
    previous_response_id: Annotated[str | None, told(maxLength=MAX_NAME_CHARS)] = None
    conversation: Annotated[str, told(maxLength=MAX_NAME_CHARS)] | ConversationRef | None = None
    store: bool | None = None
    background: bool | None = None
    generate: bool | None = None
    prompt_cache_options: ResponseCacheOptions | None = None
    max_output_tokens: Annotated[int | None, told("Cut to what the window leaves.", minimum=1)] = None
    max_tool_calls: Annotated[int | None, told("Of built-in tools, of which there are none.", minimum=1)] = (
        None
    )
    include: list[Annotated[str, one_of(INCLUDABLE)]] | None = None
    top_logprobs: Annotated[int | None, told(minimum=0, maximum=MAX_LOGPROBS)] = None
    text: TextConfig | None = None
    tools: Annotated[list[FunctionTool], told(maxItems=MAX_TOOLS)] | None = None
    tool_choice: Annotated[str, one_of(("none", "auto", "required"))] | ChosenTool | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Annotated[str, one_of(("auto", "disabled"))] | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Annotated[Labels, told("Told with the response.", maxProperties=MAX_METADATA)] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    prompt: _Null = None
    context_management: Any = None
    image: Any = None
    moderation: Any = None
    access_programs: Any = None
    background_options: Any = None
