"""What validation must know of the model, and the checks of what is held against it alone.

Pure; runs on offload threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import SamplingDefaults
from gateway.errors import ApiError, ErrorKind, bad_request
from gateway.tokenizer import TextCodec


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What validation must know of the model. ``window`` is prompt and answer together, in tokens.

    The device pool has ``num_blocks`` blocks of ``block_size`` tokens for the ``max_num_seqs`` sequences that
    run at once; ``max_in_flight`` of them may be in the house.
    """

    names: tuple[str, ...]
    codec: TextCodec
    window: int
    vocab_size: int
    fingerprint: str
    sampling_defaults: SamplingDefaults
    max_num_seqs: int
    max_in_flight: int
    num_blocks: int
    block_size: int

    @property
    def max_prompt_chars(self) -> int:
        """No text with more characters can fit the window, whatever it says."""
        return self.window * max(self.codec.longest_piece, 1)

    def room(self, num_prompt_tokens: int, num_seqs: int) -> int:
        """Tokens that each of ``num_seqs`` answers may have, by the window and by the pool at worst."""
        shared = num_prompt_tokens // self.block_size
        longest = (shared + (self.num_blocks - shared) // num_seqs) * self.block_size
        return min(self.window, longest if num_seqs > 1 else self.window) - num_prompt_tokens


def check_model(name: str | None, model: ModelContext) -> str:
    """The name that a request means. Raises ApiError for one that this server does not have."""
    if name is None:
        return model.names[0]
    if name not in model.names:
        raise ApiError(
            ErrorKind.MODEL_NOT_FOUND,
            "This server has no model of that name; GET /v1/models lists what it has.",
            param="model",
        )
    return name


def check_text_length(num_chars: int, model: ModelContext, param: str) -> None:
    """Refuse a text that cannot fit, before the cost of tokenizing it."""
    if num_chars > model.max_prompt_chars:
        raise too_many_chars(num_chars, model, param)


def too_many_chars(num_chars: int, model: ModelContext, param: str) -> ApiError:
    return ApiError(
        ErrorKind.CONTEXT_LENGTH,
        f"This model's maximum context length is {model.window} tokens, which cannot hold more than"
        f" {model.max_prompt_chars} characters; the prompt has at least {num_chars}.",
        param=param,
    )


def check_token_ids(token_ids: Sequence[int], model: ModelContext, param: str) -> None:
    """Every id must be in the vocabulary. The types were checked when the body was parsed."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < model.vocab_size):
        raise bad_request(param, f"'{param}' has a token id outside 0 to {model.vocab_size - 1}.")
