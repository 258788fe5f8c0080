"""Wire structs shared by completions and chat: what a client may send, exactly as it is sent.

Pure. Nothing here is checked beyond its JSON type; a raw request cannot pass for a validated one,
because ``GenerationRequest`` (``validated.py``) is another type. Unknown fields are refused by name,
so that a misspelt parameter never fails silently. Three groups of fields: those that work, those
that are accepted without effect, and those that are known but not supported (``REFUSED``).
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from gateway.errors import ApiError, ErrorKind, bad_request, unsupported


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # a padding against traffic analysis; we send none


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None  # a schema is kept to in any case


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's name for the same; exactly one of these."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that both endpoints have."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # accepted without effect
    user: Any = None
    metadata: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    parallel_tool_calls: bool | None = None  # works in chats
    # accepted at the values in NEUTRAL only
    store: Any = None
    service_tier: Any = None
    skip_special_tokens: Any = None
    prompt_logprobs: Any = None
    priority: Any = None


# Values at which a parameter that we do not support changes nothing, beside null.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "prompt_logprobs": (),
    "priority": (0,),
    # completions
    "echo": (False,),
    "suffix": ("",),
    # chat
    "modalities": (["text"],),
    "verbosity": (),
    "prediction": (),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),
}
_WIRE = TypeVar("_WIRE", bound=msgspec.Struct)
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_SANE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]-]{0,63}")


def decode(decoder: msgspec.json.Decoder[_WIRE], body: bytes) -> _WIRE:
    """Parse a body. Raises ApiError (400) for broken JSON, wrong types and unknown fields."""
    if not body:
        raise bad_request(None, "The request body is empty; a JSON object is expected.")
    try:
        wire = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except msgspec.DecodeError:
        raise bad_request(None, "The request body is not valid JSON.") from None
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
            raise unsupported(name, f"'{name}' is not supported by this server with that value.")
