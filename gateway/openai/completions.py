"""/v1/completions: its wire struct, its validation and its answers.

Pure; ``CompletionsEndpoint.parse`` runs on offload threads. A prompt is a string or a list of token ids; a
list of either is as many prompts, whose answers follow each other in ``choices``. In ``logprobs``, ``tokens``
joined give the text of the answer, and ``text_offset`` counts characters of that text. With ``echo`` the
prompt is the beginning of that text, and its tokens come first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.messages import FinishReason, PromptLogprobs, TokenLogprobs
from gateway.answer import Piece
from gateway.detokenizer import TokenTable
from gateway.errors import bad_request
from gateway.openai.answers import (
    AnswerFormat,
    Identity,
    TextChunk,
    Usage,
    WholeChoice,
    finite,
)
from gateway.openai.model import ModelContext, check_text_length, check_token_ids
from gateway.openai.notes import REQUIRED, Exactly, Figure, one_of, told
from gateway.openai.prompts import Echo, ShownLogprobs, shown_logprobs, truncated
from gateway.openai.ranges import MAX_LOGPROBS, MAX_PROMPTS, check_count
from gateway.openai.validated import (
    GenerationRequest,
    Prompt,
    check_fields,
    complete,
)
from gateway.openai.wire import GenerationFields, decode

_TOKEN_IDS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": Figure.LAST_TOKEN_ID},
    "minItems": 1,
}
_PROMPTS = {
    "description": "A text, token ids, or a list of either: as many prompts.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        _TOKEN_IDS,
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
        {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ],
}
CompletionFinishReason = Annotated[str, one_of((FinishReason.STOP.value, FinishReason.LENGTH.value))]


class CompletionWire(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    prompt: Annotated[str | list[int | str | list[int]] | None, REQUIRED, Exactly(_PROMPTS)] = None
    max_tokens: Annotated[
        int | None, told("Cut to what the window leaves; 0 goes with 'echo' only.", minimum=0)
    ] = None
    logprobs: Annotated[int | None, told(minimum=0, maximum=MAX_LOGPROBS)] = None
    echo: bool | None = None
    suffix: Any = None


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    text: str = ""
    logprobs: CompletionLogprobs | None = None
    finish_reason: CompletionFinishReason | None = None
    prompt_logprobs: list[ShownLogprobs | None] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """A whole answer, and a chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | UnsetType = UNSET
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


_DECODER = msgspec.json.Decoder(CompletionWire)
_ENCODER = msgspec.json.Encoder()
DEFAULT_MAX_TOKENS = 16  # OpenAI's; chat has no such default


class CompletionsEndpoint:
    """Parsing and formatting for one model."""

    id_prefix = "cmpl-"

    def __init__(self, model: ModelContext) -> None:
        self._model = model

    def parse(self, body: bytes) -> GenerationRequest:
        """Check a body and tokenize its prompts. Raises ApiError."""
        wire = decode(_DECODER, body)
        prompts = _prompts(wire.prompt)
        logprobs = check_count(wire.logprobs, MAX_LOGPROBS, "logprobs")
        checked = check_fields(wire, self._model, wire.max_tokens, logprobs, echo=bool(wire.echo))
        token_ids = [self._token_ids(prompt, wire) for prompt in prompts]
        request = complete(checked, token_ids, self._model, "prompt", DEFAULT_MAX_TOKENS)
        return self._with_echoes(request, prompts) if wire.echo else request

    def answer(self, request: GenerationRequest, identity: Identity) -> AnswerFormat:
        return CompletionFormat(request, identity, self._model.codec.table)

    def _token_ids(self, prompt: str | list[int], wire: CompletionWire) -> list[int]:
        if isinstance(prompt, list):
            check_token_ids(prompt, self._model, "prompt")
            return truncated(prompt, wire.truncate_prompt_tokens)
        check_text_length(len(prompt), self._model, "prompt")
        special = wire.add_special_tokens is None or wire.add_special_tokens
        token_ids = self._model.codec.encode(prompt, add_special_tokens=special)
        return truncated(token_ids, wire.truncate_prompt_tokens)

    def _with_echoes(
        self, request: GenerationRequest, prompts: Sequence[str | list[int]]
    ) -> GenerationRequest:
        table = self._model.codec.table
        return replace(
            request,
            prompts=tuple(
                replace(
                    prompt, echo=Echo.of(table, prompt.token_ids, sent if isinstance(sent, str) else None)
                )
                for prompt, sent in zip(request.prompts, prompts, strict=True)
            ),
        )


def _prompts(prompt: str | list[int | str | list[int]] | None) -> list[str | list[int]]:
    """The prompts of a request: texts, or lists of token ids. Raises ApiError for none or a mixture."""
    if not prompt:
        raise bad_request("prompt", "'prompt' is missing or empty.")
    if isinstance(prompt, str):
        return [prompt]
    token_ids = [item for item in prompt if isinstance(item, int)]
    several = [item for item in prompt if not isinstance(item, int)]
    if (token_ids and several) or len({type(item) for item in several}) > 1:
        raise bad_request("prompt", "'prompt' must be of one kind: a text, token ids, or a list of either.")
    if token_ids:
        return [token_ids]
    if len(several) > MAX_PROMPTS:
        raise bad_request("prompt", f"'prompt' must not have more than {MAX_PROMPTS} prompts.")
    return several


class CompletionFormat:
    """Answers of /v1/completions. Keeps each choice's text offset across the pieces of a stream."""

    __slots__ = (
        "_chunk_usage", "_identity", "_num_choices", "_num_prompt_top", "_num_top", "_offsets", "_prompts",
        "_table", "_text_chunks",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, identity: Identity, table: TokenTable) -> None:
        self._identity = identity.fields
        self._table = table
        self._prompts = request.prompts
        self._num_choices = request.num_choices
        self._num_top = request.logprobs
        self._num_prompt_top = request.prompt_logprobs
        self._chunk_usage: Usage | UnsetType | None = None if request.include_usage else UNSET
        self._offsets: dict[int, int] = defaultdict(int)
        self._text_chunks: dict[int, TextChunk] = {}

    def count(self, usage: Usage) -> None:
        self._chunk_usage = usage

    def opening(self, index: int, prompt_logprobs: PromptLogprobs | None) -> bytes | None:
        echo = self._prompt(index).echo
        if echo is None:
            return None
        logprobs = self._logprobs(index, Piece(), prompt_logprobs)
        return self._encode(
            [CompletionChoice(index=index, text=echo.text, logprobs=logprobs)], self._chunk_usage
        )

    def piece(self, index: int, piece: Piece) -> list[bytes]:
        if self._num_top is None and not isinstance(self._chunk_usage, Usage):
            return [self._text_chunk(index).of(piece.text)]
        choice = CompletionChoice(index=index, text=piece.text, logprobs=self._logprobs(index, piece))
        return [self._encode([choice], self._chunk_usage)]

    def closing(self, index: int, finish_reason: str) -> bytes:
        choice = CompletionChoice(index=index, finish_reason=finish_reason)
        return self._encode([choice], self._chunk_usage)

    def usage(self, usage: Usage) -> bytes:
        return self._encode([], usage)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        return self._encode([self._whole(index, choice) for index, choice in enumerate(choices)], usage)

    def _text_chunk(self, index: int) -> TextChunk:
        if index not in self._text_chunks:
            self._text_chunks[index] = TextChunk(
                lambda text: self._encode([CompletionChoice(index=index, text=text)], self._chunk_usage)
            )
        return self._text_chunks[index]

    def _whole(self, index: int, choice: WholeChoice) -> CompletionChoice:
        prompt, found = self._prompt(index), choice.prompt_logprobs
        shown = CompletionChoice(
            index=index,
            text=choice.piece.text if prompt.echo is None else prompt.echo.text + choice.piece.text,
            logprobs=self._logprobs(index, choice.piece, found),
            finish_reason=choice.finish_reason,
        )
        if self._num_prompt_top is not None and found is not None:
            shown.prompt_logprobs = shown_logprobs(found, prompt.token_ids, self._num_prompt_top, self._table)
        return shown

    def _prompt(self, index: int) -> Prompt:
        return self._prompts[index // self._num_choices]

    def _encode(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> bytes:
        return _ENCODER.encode(Completion(**self._identity, choices=choices, usage=usage))

    def _logprobs(
        self, index: int, piece: Piece, of_prompt: PromptLogprobs | None = None
    ) -> CompletionLogprobs | None:
        """Of a piece, and of the prompt before it if it is the first and the prompt is echoed."""
        if self._num_top is None:
            return None
        out = CompletionLogprobs([], [], [], [])
        echo = self._prompt(index).echo
        if echo is not None and of_prompt is not None:
            self._add_prompt(out, index, echo, of_prompt)
        for entry in piece.entries:
            self._add(out, index, entry.text, entry.token_id, entry.logprobs)
        return out

    def _add_prompt(self, out: CompletionLogprobs, index: int, echo: Echo, of_prompt: PromptLogprobs) -> None:
        """The prompt's tokens; nothing is known of the first, which follows nothing."""
        token_ids = self._prompt(index).token_ids
        self._add(out, index, echo.texts[0], token_ids[0], None)
        found = of_prompt.entries(self._num_top or 0)
        for text, token_id, (logprobs, _) in zip(echo.texts[1:], token_ids[1:], found, strict=True):
            self._add(out, index, text, token_id, logprobs)

    def _add(
        self, out: CompletionLogprobs, index: int, text: str, token_id: int, logprobs: TokenLogprobs | None
    ) -> None:
        out.tokens.append(text)
        out.token_logprobs.append(None if logprobs is None else finite(logprobs.logprob))
        out.top_logprobs.append(None if logprobs is None else self._alternatives(token_id, logprobs))
        out.text_offset.append(self._offsets[index])
        self._offsets[index] += len(text)

    def _alternatives(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, float]:
        """Alternatives by their own text, the sampled token always among them when any are asked for.

        Of two tokens with the same text, the likelier stands.
        """
        if not self._num_top:
            return {}
        found: dict[str, float] = {}
        for alternative, logprob in (*logprobs.top[: self._num_top], (token_id, logprobs.logprob)):
            label, _ = self._table.label(alternative)
            found[label] = max(finite(logprob), found.get(label, -float("inf")))
        return found
