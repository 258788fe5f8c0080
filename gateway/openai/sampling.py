"""How the next token is to be chosen and what ends an answer: ranges and caps of the wire's fields.

Pure; runs on offload threads. NaN and infinity fail every range.
"""

from __future__ import annotations

import secrets

from engine.messages import SamplingParams
from gateway.errors import bad_request
from gateway.openai.choices import Choices
from gateway.openai.model import ModelContext, check_token_ids
from gateway.openai.notes import ranges_of
from gateway.openai.ranges import (
    LOGIT_BIAS,
    MAX_LOGIT_BIAS,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MIN_SEED,
    check_count,
)
from gateway.openai.structured import check_structured
from gateway.openai.wire import GenerationFields, SamplingFields

_RANGES = ranges_of(SamplingFields)


def check_sampling(
    wire: GenerationFields,
    model: ModelContext,
    max_tokens: int | None,
    logprobs: int | None,
    choices: Choices,
) -> SamplingParams:
    """All but the final ``max_tokens``, which takes the prompt's length. Raises ApiError."""
    for name, allowed in _RANGES.items():
        value = getattr(wire, name)
        if value is not None and value not in allowed:
            raise bad_request(name, f"'{name}' must be {allowed}.")
    min_tokens = check_count(wire.min_tokens, model.window, "min_tokens") or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise bad_request("min_tokens", "'min_tokens' must not be above 'max_tokens'.")
    defaults = model.sampling_defaults
    return SamplingParams(
        max_tokens=model.window,
        seed=_check_seed(wire.seed),
        temperature=_or(wire.temperature, defaults.temperature),
        top_p=_or(wire.top_p, defaults.top_p),
        top_k=_check_top_k(wire.top_k, model),
        min_p=_or(wire.min_p, defaults.min_p),
        repetition_penalty=_or(wire.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(wire.presence_penalty, 0.0),
        frequency_penalty=_or(wire.frequency_penalty, 0.0),
        logit_bias=_check_logit_bias(wire.logit_bias, model),
        min_tokens=min_tokens,
        ignore_eos=bool(wire.ignore_eos),
        stop_token_ids=_check_stop_token_ids(wire.stop_token_ids, model),
        logprobs=logprobs,
        n=choices.num_generated,
        beam=choices.beam,
        grammar=check_structured(wire),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _check_seed(seed: int | None) -> int:
    """Any signed 64-bit number. The engine gets 63 bits of it: what fits every integer type."""
    if seed is None:
        return secrets.randbits(63)
    if not MIN_SEED <= seed <= MAX_SEED:
        raise bad_request("seed", "'seed' must be a signed 64-bit number.")
    return seed & MAX_SEED


def _check_top_k(top_k: int | None, model: ModelContext) -> int:
    if top_k is None:
        top_k = model.sampling_defaults.top_k
    if top_k < -1:
        raise bad_request("top_k", "'top_k' must be at least 1, or 0 or -1 for no limit.")
    return min(max(top_k, 0), model.vocab_size)


def _check_logit_bias(bias: dict[str, float] | None, model: ModelContext) -> dict[int, float]:
    param = "logit_bias"
    if not bias:
        return {}
    if len(bias) > MAX_LOGIT_BIAS:
        raise bad_request(param, f"'{param}' must not have more than {MAX_LOGIT_BIAS} entries.")
    if not all(len(key) <= 10 and key.isascii() and key.isdigit() for key in bias):
        raise bad_request(param, f"'{param}' must have token ids as its keys.")
    checked = {int(key): value for key, value in bias.items()}
    check_token_ids(list(checked), model, param)
    if not all(value in LOGIT_BIAS for value in checked.values()):
        raise bad_request(param, f"'{param}' must have values {LOGIT_BIAS}.")
    return checked


def _check_stop_token_ids(token_ids: list[int] | None, model: ModelContext) -> tuple[int, ...]:
    param = "stop_token_ids"
    if not token_ids:
        return ()
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        raise bad_request(param, f"'{param}' must not have more than {MAX_STOP_TOKEN_IDS} entries.")
    check_token_ids(token_ids, model, param)
    return tuple(dict.fromkeys(token_ids))


def check_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings, each once. Raises ApiError."""
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MAX_STOP_STRINGS:
        raise bad_request("stop", f"'stop' must not have more than {MAX_STOP_STRINGS} strings.")
    if not all(1 <= len(text) <= MAX_STOP_CHARS for text in stops):
        raise bad_request("stop", f"'stop' must have strings of 1 to {MAX_STOP_CHARS} characters.")
    return tuple(dict.fromkeys(stops))
