"""What a body is refused for before it is decoded, and what it is not."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.openai import body_parts
from gateway.openai.body_parts import MAX_COMMAS, MAX_PARTS, check_parts

VALUES = st.recursive(
    st.none() | st.integers() | st.text('a"\\[{,é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\[{,'), inner),
)


def is_refused(body: bytes) -> bool:
    try:
        check_parts(body)
    except ApiError:
        return True
    return False


def num_parts(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(num_parts, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(num_parts, value))
    return int(isinstance(value, str))


@given(VALUES, st.booleans())
def test_what_counts_is_what_would_be_made(value: Any, is_plain: bool) -> None:
    body = json.dumps(value, ensure_ascii=is_plain).encode()
    made = num_parts(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_parts, "MAX_PARTS", made)
        assert not is_refused(body)
        patch.setattr(body_parts, "MAX_PARTS", made - 1)
        assert is_refused(body)


@pytest.mark.parametrize(
    "heavy",
    [
        b"[]," * MAX_PARTS,
        b"{}," * MAX_PARTS,
        b'"",' * (MAX_PARTS + 1),
        b'"\\"\\\\",' * (MAX_PARTS + 1),
        b'{"a":"b"},' * (MAX_PARTS // 3),
        b"1," * (MAX_COMMAS + 1),
    ],
)
def test_a_body_of_very_many_values_is_refused(heavy: bytes) -> None:
    assert is_refused(b'{"prompt":[' + heavy + b"1]}")
    assert is_refused(b'{"prompt":[' + heavy + b'1],"x":"\\')  # valid JSON up to there


def test_many_pairs_are_refused_sooner_than_decoded() -> None:
    body = b'{"metadata":{' + b",".join(b'"%d":"x"' % i for i in range(600_000)) + b"}}"
    started = time.thread_time()
    assert is_refused(body)
    refusing_s = time.thread_time() - started
    started = time.thread_time()
    msgspec.json.decode(body)
    assert refusing_s < (time.thread_time() - started) / 2


@pytest.mark.parametrize(
    "prompt",
    [
        "[{" * 300_000, ',":' * 300_000, '"' * 500_000, "\\" * 500_000, '\\"' * 300_000, '"[],\\\n' * 200_000,
        [12345] * 256 * 1024, [[7] * 1000] * 256,
    ],
    ids=lambda prompt: str(prompt)[:9],
)  # fmt: skip
def test_long_prompts_pass_whatever_they_say(prompt: Any) -> None:
    assert not is_refused(json.dumps({"prompt": prompt, "metadata": {"a": "b"}}).encode())
