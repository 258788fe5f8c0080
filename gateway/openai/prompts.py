"""What an answer shows of its prompt: an echo of the text, and log probabilities in vLLM's shape.

Pure; runs on offload threads. An echo has a text for each token of the prompt. Joined, they are the prompt as
it was sent: special tokens by name, and nothing for those and the spaces that the tokenizer put in. Where it
changed the text itself (a normalizer, a cut), they are what the model saw.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.messages import PromptLogprobs
from gateway.detokenizer import TokenTable
from gateway.errors import bad_request, unsupported
from gateway.openai.answers import finite
from gateway.openai.ranges import MAX_LOGPROBS, check_count
from gateway.openai.wire import GenerationFields

MAX_SHOWN_PROMPTS = 500_000  # tokens and alternatives, of all prompts in all choices of one answer


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as an answer repeats it: ``text``, and what each token adds to it."""

    text: str
    texts: tuple[str, ...]

    @classmethod
    def of(cls, table: TokenTable, token_ids: Sequence[int], sent: str | None) -> Echo:
        """``sent`` is the text that the tokens came from, None if they were sent themselves."""
        pieces = [table.piece(token_id, names_special=True) for token_id in token_ids]
        if sent is not None:
            pieces = _as_sent(table, token_ids, sent.encode()) or pieces
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        texts = tuple(map(decoder.decode, pieces))
        return cls("".join(texts), texts)


def _as_sent(table: TokenTable, token_ids: Sequence[int], sent: bytes) -> list[bytes] | None:
    """What of a text each of its tokens stands for; None if they do not stand for it."""
    found: list[bytes] = []
    position = 0
    for token_id in token_ids:
        piece = table.piece(token_id, names_special=True)
        forms = (piece, b"") if token_id in table.skipped else (piece, piece.removeprefix(b" "))
        form = next((form for form in forms if sent.startswith(form, position)), None)
        if form is None:
            return None
        found.append(form)
        position += len(form)
    return found if position == len(sent) else None


class ShownLogprob(msgspec.Struct, gc=False):
    """vLLM's description of one token at one place."""

    logprob: float
    rank: int
    decoded_token: str


ShownLogprobs = dict[str, ShownLogprob]


def shown_logprobs(
    found: PromptLogprobs, token_ids: Sequence[int], num_top: int, table: TokenTable
) -> list[ShownLogprobs | None]:
    """For each token of a prompt itself and the likeliest in its place, by id; null for the first token."""
    shown: list[ShownLogprobs | None] = [None]
    for token_id, (entry, rank) in zip(token_ids[1:], found.entries(num_top), strict=True):
        ranked = [(token_id, entry.logprob, rank)]
        ranked += [(other, logprob, place) for place, (other, logprob) in enumerate(entry.top, start=1)]
        shown.append(
            {
                str(other): ShownLogprob(finite(logprob), place, table.label(other)[0])
                for other, logprob, place in ranked
            }
        )
    return shown


def truncated(token_ids: list[int], num_kept: int | None) -> list[int]:
    """The last ``num_kept`` tokens, or all."""
    return token_ids if num_kept is None else token_ids[-num_kept:]


def more_of(some: int | None, others: int | None) -> int | None:
    """The larger number; None if there is none."""
    return max((number for number in (some, others) if number is not None), default=None)


def check_prompt_logprobs(wire: GenerationFields) -> int | None:
    """How many alternatives are to be shown for each token of the prompt. Raises ApiError."""
    if wire.prompt_logprobs is not None and wire.stream:
        raise unsupported("prompt_logprobs", "'prompt_logprobs' does not go with 'stream': true.")
    return check_count(wire.prompt_logprobs, MAX_LOGPROBS, "prompt_logprobs")


def check_shown_prompts(num_tokens: int, num_top: int | None, param: str) -> None:
    """Refuse what would make an answer of many megabytes. ``num_tokens``: of all prompts in all choices."""
    num_shown = num_tokens * (1 + (num_top or 0))
    if num_shown > MAX_SHOWN_PROMPTS:
        raise bad_request(
            param,
            f"To show {num_shown} tokens and alternatives of prompts is too much for one answer, which may"
            f" have {MAX_SHOWN_PROMPTS}; send fewer prompts, or ask for fewer log probabilities or choices.",
        )
