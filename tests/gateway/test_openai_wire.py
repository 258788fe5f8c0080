"""Wire structs: what is broken, what is unknown, what is refused, what is harmless."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError, ErrorKind
from gateway.openai.body_parts import MAX_PARTS
from gateway.openai.chat import ChatWire
from gateway.openai.completions import CompletionWire
from gateway.openai.responses.wire import ResponseWire
from gateway.openai.wire import NEUTRAL, decode

COMPLETION = msgspec.json.Decoder(CompletionWire)
CHAT = msgspec.json.Decoder(ChatWire)


def refused(decoder: Any, body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(decoder, body)
    assert len(caught.value.body()) < 700
    json.loads(caught.value.body())
    return caught.value


@pytest.mark.case("C12")
@pytest.mark.case("C14")
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"{}x", b"\xff\xfe", b'{"prompt":"\xff"}', b'{"prompt":"\\ud800"}',
        b'{"temperature":NaN}', b'{"temperature":Infinity}', b'{"temperature":-Infinity}', b"\xef\xbb\xbf{}",
        b'{"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_400(body: bytes) -> None:
    assert refused(COMPLETION, body).status == 400


@pytest.mark.case("C12")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ('"temperature": "nan"', "temperature"),
        ('"temperature": 1e400', "temperature"),
        ('"top_p": true', "top_p"),
        ('"max_tokens": 1.5', "max_tokens"),
        ('"max_tokens": "5"', "max_tokens"),
        ('"n": true', "n"),
        ('"seed": 1' + "0" * 5000, "seed"),
        ('"stop": [1]', "stop[0]"),
        ('"stop_token_ids": [true]', "stop_token_ids[0]"),
        ('"logit_bias": {"1": "x"}', "logit_bias[...]"),
        ('"logit_bias": [1]', "logit_bias"),
        ('"stream": "yes"', "stream"),
        ('"stream_options": {"include_usage": 1}', "stream_options.include_usage"),
        ('"stream_options": {"what": 1}', "stream_options.what"),
        ('"prompt": {"a": 1}', "prompt"),
        ('"prompt": [true]', "prompt[0]"),
        ('"prompt": [1.5]', "prompt[0]"),
        ('"prompt": [[1, "a"]]', "prompt[0][1]"),
        ('"model": 3', "model"),
        ('"user": {}', "user"),
        ('"metadata": {"a": 1}', "metadata[...]"),
        ('"metadata": []', "metadata"),
        ('"store": 0', "store"),
        ('"echo": 1', "echo"),
        ('"prompt_logprobs": true', "prompt_logprobs"),
        ('"skip_special_tokens": "no"', "skip_special_tokens"),
        ('"stream_options": {"continuous_usage_stats": 1}', "stream_options.continuous_usage_stats"),
        ('"max_token": 5', "max_token"),
    ],
)
def test_a_wrong_type_names_its_field(fields: str, param: str) -> None:
    assert refused(COMPLETION, f"{{{fields}}}".encode()).param == param


@pytest.mark.case("C17")
def test_thousands_of_wrong_parts_make_one_short_error() -> None:
    parts = [{"type": 5, "secret": "x" * 50}] * 5000
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    error = refused(CHAT, body)
    assert error.param == "messages[0].content[0].type"
    assert b"xxx" not in error.body()


def test_a_body_of_very_many_parts_is_refused_before_they_are_made() -> None:
    assert refused(COMPLETION, b'{"prompt": [' + b'"",' * MAX_PARTS + b'""]}').param is None
    text = "[{" * MAX_PARTS
    assert decode(COMPLETION, json.dumps({"prompt": text}).encode()).prompt == text


def test_a_long_unknown_name_is_clipped() -> None:
    assert len(refused(COMPLETION, json.dumps({"q" * 5000: 1}).encode()).body()) < 700


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["audio"]), ("audio", {}), ("chat_template", "x"),
        ("web_search_options", {}), ("verbosity", "low"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(CHAT, json.dumps({name: value}).encode())
    assert (error.status, error.param, error.kind) == (400, name, ErrorKind.UNSUPPORTED)


def test_a_suffix_is_refused_with_the_reason() -> None:
    error = refused(COMPLETION, b'{"suffix": "x"}')
    assert (error.param, error.kind) == ("suffix", ErrorKind.UNSUPPORTED)
    assert "cannot fill a gap" in error.message


def test_harmless_parameters_are_accepted() -> None:
    body = {
        "user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k",
        "prompt_cache_retention": "24h", "parallel_tool_calls": True, "store": True, "service_tier": "auto",
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"],
        "stream_options": {"include_usage": True, "include_obfuscation": False}, "n": 1,
        "verbosity": "medium", "prediction": {"type": "content", "content": "x"},
        "spaces_between_special_tokens": False,
    }  # fmt: skip
    decode(CHAT, json.dumps(body).encode())


def test_null_is_the_same_as_leaving_it_out() -> None:
    for wire in (CompletionWire, ChatWire):
        body = dict.fromkeys(wire.__struct_fields__)
        decode(msgspec.json.Decoder(wire), json.dumps(body).encode())


def test_every_neutral_name_is_a_field_of_some_wire() -> None:
    fields = {
        *CompletionWire.__struct_fields__,
        *ChatWire.__struct_fields__,
        *ResponseWire.__struct_fields__,
    }
    assert set(NEUTRAL) <= fields
