"""/v1/chat/completions: its wire structs, its validation and its answers.

Pure; ``ChatEndpoint.parse`` runs on offload threads. Content is a string, text parts or nothing, for
every role; parts are joined. ``developer`` is shown as ``system`` to templates that do not know it.
Unknown fields inside messages are ignored, because frontends send back what other servers added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answer import Piece
from gateway.chat_template import ChatTemplate, PromptTooLargeError, TemplateRenderError
from gateway.detokenizer import TokenTable, printable
from gateway.errors import bad_request, unsupported
from gateway.openai.answers import AnswerFormat, Identity, Usage, WholeChoice, finite
from gateway.openai.validated import (
    MAX_LOGPROBS,
    GenerationRequest,
    ModelContext,
    check_count,
    check_fields,
    complete,
    too_many_chars,
)
from gateway.openai.wire import GenerationFields, decode

_ROLES = ("system", "developer", "user", "assistant", "tool")


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class ToolFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: ToolFunction
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatWire(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    prediction: Any = None
    audio: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    add_generation_prompt: Any = None


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class Delta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatAnswer(msgspec.Struct, kw_only=True):
    """A whole answer, or with ``chat.completion.chunk`` a part of a streamed one."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice] | list[ChatChoice]
    usage: Usage | UnsetType | None = UNSET


_DECODER = msgspec.json.Decoder(ChatWire)
_ENCODER = msgspec.json.Encoder()


class ChatEndpoint:
    """Parsing and formatting for one model; ``template`` is None if it has none."""

    id_prefix = "chatcmpl-"

    def __init__(self, model: ModelContext, template: ChatTemplate | None) -> None:
        self._model = model
        self._template = template

    def parse(self, body: bytes) -> GenerationRequest:
        """Check a body, render its messages and tokenize them. Raises ApiError."""
        wire = decode(_DECODER, body)
        max_tokens = wire.max_completion_tokens
        if max_tokens is not None and max_tokens < 1:
            raise bad_request("max_completion_tokens", "'max_completion_tokens' must be at least 1.")
        max_tokens = wire.max_tokens if max_tokens is None else max_tokens
        checked = check_fields(wire, self._model, max_tokens, _num_logprobs(wire))
        return complete(checked, [self.encode(wire.messages)], self._model, "messages")

    def encode(self, messages: list[Message] | None) -> list[int]:
        """Token ids of a chat as the model is to see it. Raises ApiError."""
        return self._model.codec.encode(self._render(messages), add_special_tokens=False)

    def answer(self, request: GenerationRequest, identity: Identity) -> AnswerFormat:
        return ChatFormat(request, identity, self._model.codec.table)

    def _render(self, messages: list[Message] | None) -> str:
        if self._template is None:
            raise bad_request("messages", "This model has no chat template; use /v1/completions instead.")
        if not messages:
            raise bad_request("messages", "'messages' is missing or empty.")
        if len(messages) > self._model.window:
            raise bad_request("messages", f"'messages' has more than {self._model.window} entries.")
        plain = [
            _template_message(message, f"messages[{i}]", self._template.knows_developer)
            for i, message in enumerate(messages)
        ]
        try:
            return self._template.render(plain, self._model.max_prompt_chars)
        except PromptTooLargeError as error:
            raise too_many_chars(error.max_chars + 1, self._model, "messages") from None
        except TemplateRenderError as error:
            raise bad_request("messages", str(error)) from None


def _num_logprobs(wire: ChatWire) -> int | None:
    top = check_count(wire.top_logprobs, MAX_LOGPROBS, "top_logprobs")
    if wire.logprobs:
        return top or 0
    if top:
        raise bad_request("top_logprobs", "'top_logprobs' goes with 'logprobs': true only.")
    return None


def _template_message(message: Message, param: str, knows_developer: bool) -> dict[str, Any]:
    """A message as templates expect it: text content, and no key without a value."""
    if message.role not in _ROLES:
        raise bad_request(f"{param}.role", f"The role must be one of {', '.join(_ROLES)}.")
    role = "system" if message.role == "developer" and not knows_developer else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message.content, f"{param}.content")}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        plain["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return plain


def _text(content: str | list[ContentPart] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "refusal"):
            raise unsupported(f"{param}[{i}].type", "Only text parts are supported; this model reads text.")
        if text is None:
            raise bad_request(f"{param}[{i}]", "A text part must have a text.")
        texts.append(text)
    return "".join(texts)


def _template_call(call: ToolCall) -> dict[str, Any]:
    """Templates want arguments as an object where the wire has a JSON string."""
    arguments: Any = call.function.arguments or {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or "", "type": call.type, "function": function}


class ChatFormat:
    """Answers of /v1/chat/completions."""

    def __init__(self, request: GenerationRequest, identity: Identity, table: TokenTable) -> None:
        self._identity = identity
        self._table = table
        self._num_top = request.logprobs
        self._chunk_usage: UnsetType | None = None if request.include_usage else UNSET

    def opening(self, index: int) -> bytes | None:
        choice = ChunkChoice(index=index, delta=Delta(role="assistant", content=""))
        return self._chunk([choice], self._chunk_usage)

    def piece(self, index: int, piece: Piece) -> bytes:
        delta = Delta(content=piece.text)
        choice = ChunkChoice(index=index, delta=delta, logprobs=self._logprobs(piece))
        return self._chunk([choice], self._chunk_usage)

    def closing(self, index: int, finish_reason: str) -> bytes:
        choice = ChunkChoice(index=index, delta=Delta(), finish_reason=finish_reason)
        return self._chunk([choice], self._chunk_usage)

    def usage(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        shown = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.piece.text),
                logprobs=self._logprobs(choice.piece),
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(choices)
        ]
        return self._encode("chat.completion", shown, usage)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> bytes:
        return self._encode("chat.completion.chunk", choices, usage)

    def _encode(
        self, kind: str, choices: list[ChunkChoice] | list[ChatChoice], usage: Usage | UnsetType | None
    ) -> bytes:
        who = self._identity
        return _ENCODER.encode(
            ChatAnswer(
                id=who.id,
                object=kind,
                created=who.created,
                model=who.model,
                system_fingerprint=who.fingerprint,
                choices=choices,
                usage=usage,
            )
        )

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if self._num_top is None:
            return None
        return ChatLogprobs(
            [
                TokenLogprob(
                    printable(entry.raw),
                    finite(entry.logprobs.logprob),
                    list(entry.raw),
                    [self._alternative(*top) for top in entry.logprobs.top[: self._num_top]],
                )
                for entry in piece.entries
            ]
        )

    def _alternative(self, token_id: int, logprob: float) -> TopLogprob:
        label, raw = self._table.label(token_id)
        return TopLogprob(label, finite(logprob), list(raw))
