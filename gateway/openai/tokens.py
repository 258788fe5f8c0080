"""/tokenize and /detokenize: what the server makes of a text before it computes anything. vLLM's shapes.

Pure; runs on offload threads. A chat is rendered as ``/v1/chat/completions`` would; special tokens show as
their names.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from gateway.errors import bad_request
from gateway.openai.chat import ChatEndpoint
from gateway.openai.chat_prompt import Chat, Effort, TemplateVariables, check_variables, make_chat
from gateway.openai.messages import Message
from gateway.openai.model import ModelContext, check_model, check_text_length, check_token_ids
from gateway.openai.notes import REQUIRED, Figure, ModelName, TokenId, told
from gateway.openai.tools import Tools, offered
from gateway.openai.wire import decode


class TokenizeWire(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Either a prompt or messages."""

    model: ModelName = None
    prompt: str | None = None
    messages: Annotated[list[Message] | None, told(minItems=1, maxItems=Figure.WINDOW)] = None
    tools: Tools | None = None
    chat_template_kwargs: TemplateVariables | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeWire(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: ModelName = None
    tokens: Annotated[list[TokenId] | None, REQUIRED, told(maxItems=Figure.WINDOW)] = None


class Tokenized(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(msgspec.Struct, kw_only=True):
    prompt: str


_TOKENIZE = msgspec.json.Decoder(TokenizeWire)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeWire)
_ENCODER = msgspec.json.Encoder()


class TokensEndpoint:
    """Both ways for one model."""

    def __init__(self, model: ModelContext, chat: ChatEndpoint) -> None:
        self._model = model
        self._chat = chat

    def tokenize(self, body: bytes) -> bytes:
        """Token ids of a prompt or of a chat, as JSON. Raises ApiError."""
        wire = decode(_TOKENIZE, body)
        check_model(wire.model, self._model)
        if (wire.prompt is None) == (wire.messages is None):
            raise bad_request("prompt", "Either 'prompt' or 'messages' is needed.")
        chat = _chat(wire)  # checked even if there is a prompt instead
        if wire.prompt is None:
            tokens = self._chat.encode(chat)
        else:
            check_text_length(len(wire.prompt), self._model, "prompt")
            special = wire.add_special_tokens is None or wire.add_special_tokens
            tokens = self._model.codec.encode(wire.prompt, add_special_tokens=special)
        answer = Tokenized(count=len(tokens), max_model_len=self._model.window, tokens=tokens)
        if wire.return_token_strs:
            answer.token_strs = [self._model.codec.table.label(token)[0] for token in tokens]
        return _ENCODER.encode(answer)

    def detokenize(self, body: bytes) -> bytes:
        """The text of some token ids, as JSON. Raises ApiError."""
        wire = decode(_DETOKENIZE, body)
        check_model(wire.model, self._model)
        if wire.tokens is None:
            raise bad_request("tokens", "'tokens' is missing.")
        if len(wire.tokens) > self._model.window:
            raise bad_request("tokens", f"'tokens' must have at most {self._model.window} ids, the window.")
        check_token_ids(wire.tokens, self._model, "tokens")
        raw = b"".join(self._model.codec.table.label(token)[1] for token in wire.tokens)
        return _ENCODER.encode(Detokenized(prompt=raw.decode("utf-8", errors="replace")))


def _chat(wire: TokenizeWire) -> Chat:
    return make_chat(
        wire.messages or (),
        offered(wire.tools or ()),
        check_variables(wire.chat_template_kwargs, wire.reasoning_effort),
        opens_answer=wire.add_generation_prompt,
        continues_last=wire.continue_final_message,
    )
