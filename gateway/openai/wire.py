"""Wire structs shared by the endpoints that generate: what a client may send, exactly as it is sent.

Pure. Nothing here is checked beyond its JSON type; a raw request cannot pass for a validated one,
because ``GenerationRequest`` (``validated.py``) is another type. Notes on the fields (``notes.py``) say what
the checks there let through. Unknown fields are refused by name, so that a misspelt parameter never fails
silently. Three groups of fields: those that work, those that are accepted without effect, and those that
are known but not supported (``NEUTRAL``).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from gateway.errors import ApiError, ErrorKind, bad_request, unsupported
from gateway.openai.body_parts import check_parts
from gateway.openai.notes import Figure, ModelName, TokenId, one_of, told
from gateway.openai.ranges import (
    CACHE_RETENTIONS,
    LENGTH_PENALTY,
    LOGIT_BIAS,
    MAX_FORM_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_NAME_CHARS,
    MAX_PRIORITY,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MIN_SEED,
    TTL_PATTERN,
    Range,
)

MaxTokens = Annotated[int | None, told("Cut to what the window leaves.", minimum=1)]
NumChoices = Annotated[int | None, told(minimum=1, maximum=Figure.MAX_CHOICES)]
StopString = Annotated[str, told(minLength=1, maxLength=MAX_STOP_CHARS)]
Texts = Annotated[list[Annotated[str, told(minLength=1)]], told(minItems=1, maxItems=MAX_FORM_CHOICES)]
LogitBias = Annotated[
    dict[
        Annotated[str, told(pattern="^[0-9]{1,10}$")],
        Annotated[float, told(**LOGIT_BIAS.schema)],
    ],
    told("By token id.", maxProperties=MAX_LOGIT_BIAS),
]
IgnoredName = Annotated[str | None, told("Accepted without effect.", maxLength=MAX_NAME_CHARS)]
Labels = dict[
    Annotated[str, told(maxLength=MAX_METADATA_KEY)], Annotated[str, told(maxLength=MAX_METADATA_VALUE)]
]
Metadata = Annotated[Labels, told("Accepted without effect.", maxProperties=MAX_METADATA)]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # a padding against traffic analysis; we send none


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None  # a schema is kept to in any case


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[str, one_of(("text", "json_object", "json_schema"))]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's name for the same; exactly one of these."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: bool | None = None


class PromptCacheOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``ttl``: how long the KV of this history is to be kept."""

    mode: Annotated[str, one_of(("implicit", "explicit"))] | None = None
    ttl: Annotated[str, told(pattern=TTL_PATTERN)] | None = None
    comparison_response_id: IgnoredName = None


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that all endpoints have that generate."""

    model: ModelName = None
    stream: bool | None = None
    temperature: Annotated[float | None, Range(0, 2)] = None
    top_p: Annotated[float | None, Range(0, 1, low_is_open=True)] = None
    top_k: Annotated[int | None, told("0 and -1 mean no limit.", minimum=-1)] = None
    min_p: Annotated[float | None, Range(0, 1)] = None
    repetition_penalty: Annotated[float | None, Range(0.01, 2)] = None
    presence_penalty: Annotated[float | None, Range(-2, 2)] = None
    frequency_penalty: Annotated[float | None, Range(-2, 2)] = None
    logit_bias: LogitBias | None = None
    seed: Annotated[int | None, told(minimum=MIN_SEED, maximum=MAX_SEED)] = None
    stop: StopString | Annotated[list[StopString], told(maxItems=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId] | None, told(maxItems=MAX_STOP_TOKEN_IDS)] = None
    min_tokens: Annotated[int | None, told(minimum=0, maximum=Figure.WINDOW)] = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    service_tier: Annotated[str, one_of(("auto", "default", "flex", "priority"))] | None = None
    priority: Annotated[int | None, told("The lower first.", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)] = (
        None
    )
    user: IgnoredName = None
    metadata: Metadata | None = None
    safety_identifier: IgnoredName = None
    prompt_cache_key: Annotated[
        str | None, told("Requests with one key are of one session.", maxLength=MAX_NAME_CHARS)
    ] = None
    prompt_cache_retention: Annotated[str, one_of(CACHE_RETENTIONS)] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    parallel_tool_calls: bool | None = None  # works where there are tools


class GenerationFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields that completions and chats have."""

    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens = None
    n: NumChoices = None
    best_of: NumChoices = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float | None, LENGTH_PENALTY] = None
    early_stopping: bool | Annotated[str, one_of(["never"])] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    prompt_logprobs: Annotated[int | None, told("Not streamed.", minimum=0, maximum=MAX_LOGPROBS)] = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[
        int | None, told("How many of the last tokens are kept.", minimum=1, maximum=Figure.WINDOW)
    ] = None
    store: bool | None = None  # without effect
    spaces_between_special_tokens: bool | None = None  # without effect


# Values at which a parameter that we do not support changes nothing, beside null.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    # completions
    "suffix": ("",),
    # chat
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    "chat_template": (),
    # responses
    "context_management": ([],),
    "image": (),
    "access_programs": (),
    "background_options": (),
}
# Why a parameter is not supported, where that is worth a word of its own.
_REASONS = {
    "suffix": "this model goes on from a text and cannot fill a gap in one",
    "web_search_options": "this server searches nothing",
    "audio": "this model writes text",
    "modalities": "this model writes text",
    "moderation": "this server moderates nothing",
    "chat_template": "the template is the model's own",
    "verbosity": "the model has no such setting",
}
_WIRE = TypeVar("_WIRE", bound=msgspec.Struct)
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_SANE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]-]{0,63}")


def decode(decoder: msgspec.json.Decoder[_WIRE], body: bytes) -> _WIRE:
    """Parse a body. Raises ApiError (400) for broken JSON, very many values, wrong types, unknown fields."""
    if not body:
        raise bad_request(None, "The request body is empty; a JSON object is expected.")
    check_parts(body)
    try:
        wire = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except msgspec.DecodeError:
        raise bad_request(
            None, "The request body is not valid JSON in UTF-8 (half a character, perhaps)."
        ) from None
    except RecursionError:
        raise bad_request(None, "The request body is nested too deeply.") from None
    _refuse_unsupported(wire)
    return wire


def _wrong_type(message: str) -> ApiError:
    match = _PATH.match(message)
    assert match is not None
    path, what = match["path"] or None, match["what"]
    unknown = _UNKNOWN_FIELD.match(what)
    if unknown:
        return _unknown_field(f"{path}.{unknown['name']}" if path else unknown["name"])
    where = f"'{path}'" if path else "the request body"
    return bad_request(path, f"Wrong value for {where}: {what[:1].lower()}{what[1:]}.")


def _unknown_field(name: str) -> ApiError:
    """By name, so that a misspelt parameter is found; but only if it can be one: input is not repeated."""
    if not _SANE_NAME.fullmatch(name):
        return ApiError(ErrorKind.UNSUPPORTED, "There is a parameter that is not known here.")
    return ApiError(ErrorKind.UNSUPPORTED, f"The parameter '{name}' is not known here.", param=name)


def _refuse_unsupported(wire: msgspec.Struct) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(wire, name, None)
        if value is not None and not any(value == ok and type(value) is type(ok) for ok in neutral):
            reason = _REASONS.get(name)
            why = f": {reason}" if reason else ""
            raise unsupported(name, f"'{name}' is not supported by this server with that value{why}.")
