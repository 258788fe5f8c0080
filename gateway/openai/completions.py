"""/v1/completions: its wire struct, its validation and its answers.

Pure; ``CompletionsEndpoint.parse`` runs on offload threads. A prompt is a string or a list of token ids; a
list of either is as many prompts, whose answers follow each other in ``choices``. In ``logprobs``, ``tokens``
joined give the text of the answer, and ``text_offset`` counts characters of that text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answer import Piece, TokenEntry
from gateway.detokenizer import TokenTable
from gateway.errors import bad_request
from gateway.openai.answers import (
    AnswerFormat,
    FinishReasonName,
    Identity,
    Usage,
    WholeChoice,
    finite,
)
from gateway.openai.notes import REQUIRED, Exactly, Figure, told
from gateway.openai.ranges import MAX_LOGPROBS, MAX_PROMPTS
from gateway.openai.validated import (
    GenerationRequest,
    ModelContext,
    check_count,
    check_fields,
    check_text_length,
    check_token_ids,
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


class CompletionWire(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    prompt: Annotated[str | list[int | str | list[int]] | None, REQUIRED, Exactly(_PROMPTS)] = None
    logprobs: Annotated[int | None, told(minimum=0, maximum=MAX_LOGPROBS)] = None
    echo: Any = None
    suffix: Any = None


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    text: str = ""
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReasonName | None = None


class Completion(msgspec.Struct, kw_only=True):
    """A whole answer, and a chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
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
        checked = check_fields(wire, self._model, wire.max_tokens, logprobs)
        token_ids = [self._token_ids(prompt) for prompt in prompts]
        return complete(checked, token_ids, self._model, "prompt", DEFAULT_MAX_TOKENS)

    def answer(self, request: GenerationRequest, identity: Identity) -> AnswerFormat:
        return CompletionFormat(request, identity, self._model.codec.table)

    def _token_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            check_token_ids(prompt, self._model, "prompt")
            return prompt
        check_text_length(len(prompt), self._model, "prompt")
        return self._model.codec.encode(prompt, add_special_tokens=True)


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

    def __init__(self, request: GenerationRequest, identity: Identity, table: TokenTable) -> None:
        self._identity = identity
        self._table = table
        self._num_top = request.logprobs
        self._chunk_usage: UnsetType | None = None if request.include_usage else UNSET
        self._offsets: dict[int, int] = defaultdict(int)

    def opening(self, index: int) -> bytes | None:
        return None

    def piece(self, index: int, piece: Piece) -> list[bytes]:
        choice = CompletionChoice(index=index, text=piece.text, logprobs=self._logprobs(index, piece))
        return [self._encode([choice], self._chunk_usage)]

    def closing(self, index: int, finish_reason: str) -> bytes:
        choice = CompletionChoice(index=index, finish_reason=finish_reason)
        return self._encode([choice], self._chunk_usage)

    def usage(self, usage: Usage) -> bytes:
        return self._encode([], usage)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        shown = [
            CompletionChoice(
                index=index,
                text=choice.piece.text,
                logprobs=self._logprobs(index, choice.piece),
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(choices)
        ]
        return self._encode(shown, usage)

    def _encode(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> bytes:
        who = self._identity
        return _ENCODER.encode(
            Completion(
                id=who.id,
                created=who.created,
                model=who.model,
                system_fingerprint=who.fingerprint,
                choices=choices,
                usage=usage,
            )
        )

    def _logprobs(self, index: int, piece: Piece) -> CompletionLogprobs | None:
        if self._num_top is None:
            return None
        out = CompletionLogprobs([], [], [], [])
        for entry in piece.entries:
            out.tokens.append(entry.text)
            out.token_logprobs.append(finite(entry.logprobs.logprob))
            out.top_logprobs.append(self._alternatives(entry))
            out.text_offset.append(self._offsets[index])
            self._offsets[index] += len(entry.text)
        return out

    def _alternatives(self, entry: TokenEntry) -> dict[str, float]:
        """Alternatives by their own text, the sampled token always among them when any are asked for.

        Of two tokens with the same text, the likelier stands.
        """
        if not self._num_top:
            return {}
        found: dict[str, float] = {}
        for token_id, logprob in (*entry.logprobs.top, (entry.token_id, entry.logprobs.logprob)):
            label, _ = self._table.label(token_id)
            found[label] = max(finite(logprob), found.get(label, -float("inf")))
        return found
