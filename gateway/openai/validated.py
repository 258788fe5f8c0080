"""From wire structs to a request that the engine can take: what is checked where all parts of it meet.

Pure; runs on offload threads. ``GenerationRequest`` is built by the endpoints through this module
only. Order of the checks: what is cheap first, so that a bad request is refused before its prompt
is tokenized and before anything is allocated for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from engine.messages import SamplingParams
from gateway.errors import ApiError, ErrorKind, bad_request
from gateway.openai.cache_hints import NO_HINTS, CacheHints, check_cache_hints
from gateway.openai.choices import Choices, check_choices
from gateway.openai.harmless import check_harmless
from gateway.openai.model import ModelContext, check_model
from gateway.openai.prompts import Echo, check_prompt_logprobs, check_shown_prompts, more_of
from gateway.openai.ranges import check_count
from gateway.openai.sampling import check_sampling, check_stops
from gateway.openai.service import DEFAULT_SERVICE, Service, check_service
from gateway.openai.structured import structured_param
from gateway.openai.wire import GenerationFields, StreamOptions
from gateway.reading import Reading

MAX_BEAM_LOGPROBS = 1_000_000  # all results of a search are told in one message
_ZERO = ", or 0 if a completion's prompt is echoed, without beams"
OPEN_ANSWER_TOKENS = 1024  # that an answer without a limit of its own is reckoned with beforehand


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, and how to go on from it. Those of a request differ in ``sampling.max_tokens`` only.

    ``echo`` is set if the answer is to begin with it.
    """

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    echo: Echo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How a request wants to be answered, whatever its prompt.

    Of the sequences that each prompt's ``sampling`` asks for, ``num_choices`` are shown, with ``logprobs``
    alternatives. ``keeps_stop``: what ended a text is part of it. ``grammar_param``: whence a grammar comes.
    ``prompt_logprobs``: alternatives to show for each token of a prompt, beside those of an echo.
    ``names_special``: special tokens are text. ``continuous_usage``: every chunk tells the usage so far.
    """

    model: str
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    num_choices: int = 1
    logprobs: int | None = None
    keeps_stop: bool = False
    service: Service = DEFAULT_SERVICE
    cache: CacheHints = NO_HINTS
    prompt_logprobs: int | None = None
    names_special: bool = False
    continuous_usage: bool = False
    grammar_param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(AnswerOptions):
    """A request that passed every check. ``clamped_from`` is the max_tokens that did not fit.

    ``is_open_ended``: it named no max_tokens. With a ``reading`` the answers are more than their text.
    """

    prompts: tuple[Prompt, ...]
    clamped_from: int | None = None
    is_open_ended: bool = False
    reading: Reading | None = None

    @property
    def sampling(self) -> SamplingParams:
        """What all prompts have in common, which is all but ``max_tokens``: that is the first one's."""
        return self.prompts[0].sampling

    @property
    def least_max_tokens(self) -> int:
        """That of the prompt with the least room."""
        return min(prompt.sampling.max_tokens for prompt in self.prompts)

    @property
    def num_seqs(self) -> int:
        """Sequences that run at once for all prompts."""
        return sum(prompt.sampling.num_seqs for prompt in self.prompts)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def num_reserved_tokens(self) -> int:
        """Tokens that prompts and answers may take together; open-ended answers may yet take more."""
        most = OPEN_ANSWER_TOKENS if self.is_open_ended else sys.maxsize
        return sum(
            len(prompt.token_ids) + prompt.sampling.num_seqs * min(prompt.sampling.max_tokens, most)
            for prompt in self.prompts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFields(AnswerOptions):
    """All but the prompt. ``sampling.max_tokens`` is not final before the prompt's length is known."""

    sampling: SamplingParams
    requested_max_tokens: int | None
    echo: bool

    @property
    def options(self) -> dict[str, Any]:
        """What the request takes over as it is, by name."""
        return {option.name: getattr(self, option.name) for option in fields(AnswerOptions)}

    @property
    def num_least(self) -> int:
        """Tokens that there must be room for."""
        return 0 if self.requested_max_tokens == 0 else 1


def check_fields(
    wire: GenerationFields,
    model: ModelContext,
    max_tokens: int | None,
    logprobs: int | None,
    *,
    echo: bool = False,
) -> CheckedFields:
    """Check everything that both endpoints share. Raises ApiError naming the first bad field."""
    check_harmless(wire)
    name = check_model(wire.model, model)
    choices = check_choices(wire, model.max_num_seqs)
    may_be_zero = echo and choices.beam is None
    check_max_tokens(max_tokens, "max_tokens", may_be_zero=may_be_zero, zero=_ZERO)
    options = wire.stream_options or StreamOptions()
    if (options.include_usage or options.continuous_usage_stats) and not wire.stream:
        raise bad_request("stream_options", "'stream_options' goes with 'stream': true only.")
    prompt_logprobs = check_prompt_logprobs(wire)
    check_count(wire.truncate_prompt_tokens, model.window, "truncate_prompt_tokens", low=1)
    return CheckedFields(
        model=name,
        sampling=msgspec.structs.replace(
            check_sampling(wire, model, max_tokens, _generated_logprobs(choices, logprobs), choices),
            prompt_logprobs=more_of(prompt_logprobs, logprobs if echo else None),
        ),
        requested_max_tokens=max_tokens,
        stops=check_stops(wire.stop),
        stream=bool(wire.stream),
        include_usage=bool(options.include_usage),
        num_choices=choices.num_shown,
        logprobs=logprobs,
        keeps_stop=bool(wire.include_stop_str_in_output),
        echo=echo,
        prompt_logprobs=prompt_logprobs,
        names_special=wire.skip_special_tokens is False,
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        service=check_service(wire),
        cache=check_cache_hints(wire),
        grammar_param=structured_param(wire),
    )


def _generated_logprobs(choices: Choices, shown: int | None) -> int | None:
    """To tell the best of several, their log probabilities are needed whether they are shown or not."""
    return 0 if shown is None and choices.num_generated > choices.num_shown else shown


def complete(
    checked: CheckedFields,
    prompts: Sequence[Sequence[int]],
    model: ModelContext,
    param: str,
    default_max_tokens: int | None = None,
    reading: Reading | None = None,
) -> GenerationRequest:
    """Join the checked fields with the prompts' tokens; ``param`` is the field these came from.

    A request that names no ``max_tokens`` gets ``default_max_tokens``, or what the window leaves.
    """
    num_seqs = len(prompts) * checked.sampling.num_seqs
    if num_seqs > model.max_in_flight:
        raise bad_request(
            param,
            f"The request is for {num_seqs} answers at once; this server takes {model.max_in_flight} at most"
            " (--max-num-seqs plus --max-waiting).",
        )
    rooms = [_room(checked, len(token_ids), model, param) for token_ids in prompts]
    if checked.echo or checked.sampling.prompt_logprobs is not None:
        num_tokens = checked.num_choices * sum(map(len, prompts))
        check_shown_prompts(num_tokens, checked.sampling.prompt_logprobs, param)
    wanted = checked.requested_max_tokens
    return GenerationRequest(
        **checked.options,
        prompts=tuple(
            Prompt(tuple(token_ids), _sampling_for(checked, room, default_max_tokens))
            for token_ids, room in zip(prompts, rooms, strict=True)
        ),
        clamped_from=wanted if wanted is not None and wanted > min(rooms) else None,
        is_open_ended=wanted is None,
        reading=reading,
    )


def _sampling_for(checked: CheckedFields, room: int, default_max_tokens: int | None) -> SamplingParams:
    """Of a prompt that leaves room for so many tokens."""
    sampling, wanted = checked.sampling, checked.requested_max_tokens
    default = room if default_max_tokens is None else max(default_max_tokens, sampling.min_tokens)
    max_tokens = min(default if wanted is None else wanted, room)
    return msgspec.structs.replace(
        sampling, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens)
    )


def _room(checked: CheckedFields, num_prompt_tokens: int, model: ModelContext, param: str) -> int:
    """How long each answer may be. Raises ApiError if too short, or longer than can be told at once."""
    sampling = checked.sampling
    if not num_prompt_tokens:
        raise bad_request(param, f"'{param}' is empty; there is nothing to continue.")
    if num_prompt_tokens + checked.num_least > model.window:
        raise ApiError(
            ErrorKind.CONTEXT_LENGTH,
            # clients know it by its first words
            f"This model's maximum context length is {model.window} tokens, of which at least"
            f" {checked.num_least} must be left for the answer; the prompt has {num_prompt_tokens}.",
            param=param,
        )
    room = model.room(num_prompt_tokens, sampling.num_seqs)
    if room < checked.num_least:
        raise bad_request(
            "n",
            f"{sampling.num_seqs} answers to a prompt of {num_prompt_tokens} tokens do not fit the KV pool"
            " at once.",
        )
    if sampling.beam is not None and sampling.logprobs is not None:
        shown = sampling.n * min(sampling.max_tokens, room) * (1 + sampling.logprobs)
        if shown > MAX_BEAM_LOGPROBS:
            raise bad_request(
                "logprobs",
                f"Beams with so many log probabilities ({shown}) are too much for one answer;"
                f" ask for fewer, or for shorter answers: {MAX_BEAM_LOGPROBS} at most.",
            )
    return room


def check_max_tokens(
    value: int | None, param: str, *, may_be_zero: bool = False, zero: str = ""
) -> int | None:
    """Raises ApiError; ``zero`` tells when it may be zero."""
    if value is not None and value < (0 if may_be_zero else 1):
        raise bad_request(param, f"'{param}' must be at least 1{zero}.")
    return value
