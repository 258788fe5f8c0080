"""Structured output through a real server with the real model: every answer that ends keeps to its form."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from tests.support.server import Server, running_server

TIMEOUT_S = 120
NUM_SEEDS = 40 if os.environ.get("TIDEGATE_SLOW") == "1" else 8
SHORT = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 3},
            "where": {"$ref": "#/$defs/point"},
            "note": {"anyOf": [SHORT, {"type": "null"}]},
        },
        "required": ["tags", "where", "note"],
        "additionalProperties": False,
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "integer", "minimum": -99, "maximum": 99}, "y": {"const": 1.5}},
                "required": ["x", "y"],
                "additionalProperties": False,
            }
        },
    },
    "date": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            "sure": {"type": "boolean"},
        },
        "required": ["day", "code", "sure"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 99}, "maxItems": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server("--max-num-seqs", "16") as running:
        yield running


def send(server: Server, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def chat(server: Server, prompt: str = "Answer in JSON.", **fields: Any) -> tuple[int, bytes]:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 1.0,
        "max_tokens": 400,
        **fields,
    }
    return send(server, "/v1/chat/completions", body)


def answers(server: Server, **fields: Any) -> list[tuple[str, str]]:
    """Text and finish reason of each choice, streamed or not."""
    status, body = chat(server, **fields)
    assert status == 200, body
    if not fields.get("stream"):
        choices = json.loads(body)["choices"]
        return [(choice["message"]["content"], choice["finish_reason"]) for choice in choices]
    texts, reasons = dict[int, str](), dict[int, str]()
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                index = choice["index"]
                texts[index] = texts.get(index, "") + choice["delta"].get("content", "")
                reasons[index] = choice["finish_reason"] or reasons.get(index, "")
    return [(texts[index], reasons[index]) for index in sorted(texts)]


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_is_valid_by_its_schema(server: Server, name: str) -> None:
    schema = SCHEMAS[name]

    def ask(seed: int) -> list[tuple[str, str]]:
        return answers(server, seed=seed, stream=seed % 2 == 0, response_format=schema_format(schema))

    with ThreadPoolExecutor(8) as pool:
        found = [answer for several in pool.map(ask, range(NUM_SEEDS)) for answer in several]
    assert {reason for _, reason in found} == {"stop"}
    for text, _ in found:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    assert len({text for text, _ in found}) > 1


def test_json_mode_gives_objects(server: Server) -> None:
    def ask(seed: int) -> list[tuple[str, str]]:
        prompt = 'Repeat only this: {"a": 1}'
        return answers(server, prompt=prompt, seed=seed, response_format={"type": "json_object"})

    with ThreadPoolExecutor(8) as pool:
        found = [answer for several in pool.map(ask, range(NUM_SEEDS)) for answer in several]
    ended = [text for text, reason in found if reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_answers_keeps_to_the_schema(server: Server, stream: bool) -> None:
    wanted = schema_format(SCHEMAS["person"])
    found = answers(server, n=3, seed=5, stream=stream, response_format=wanted, max_tokens=100)
    assert [reason for _, reason in found] == ["stop"] * 3
    for text, _ in found:
        jsonschema.validate(json.loads(text), SCHEMAS["person"])
    assert len({text for text, _ in found}) > 1


def test_regex_choice_and_lark(server: Server) -> None:
    for seed in range(2):
        ((text, reason),) = answers(server, seed=seed, structured_outputs={"regex": "[0-9]{3}-[a-f]{2}"})
        assert reason == "stop" and re.fullmatch("[0-9]{3}-[a-f]{2}", text)
        choices = ["a.b", "naïve 😀", "line\nbreak"]
        ((text, reason),) = answers(server, seed=seed, guided_choice=choices)
        assert reason == "stop" and text in choices
        lark = 'start: "<" WORD ("," WORD){2} ">"\nWORD: /[a-z]{1,6}/'
        ((text, reason),) = answers(server, seed=seed, guided_grammar=lark)
        assert reason == "stop" and re.fullmatch("<[a-z]{1,6}(,[a-z]{1,6}){2}>", text)


def test_completions_too_and_the_end_outweighs_min_tokens(server: Server) -> None:
    body = {"prompt": ["One or two?", "Two or one?"], "guided_choice": ["one", "two"], "min_tokens": 12}
    status, answer = send(server, "/v1/completions", body)
    assert status == 200, answer
    for choice in json.loads(answer)["choices"]:
        assert choice["text"] in ("one", "two") and choice["finish_reason"] == "stop"


def test_an_answer_cut_by_its_limit_says_so(server: Server) -> None:
    ((text, reason),) = answers(
        server, seed=1, max_tokens=3, response_format=schema_format(SCHEMAS["person"])
    )
    assert reason == "length" and text.startswith("{")


DEEP = '{"items":' * 10_000 + "{}" + "}" * 10_000
CHAIN = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1000)}
BAD: dict[str, dict[str, Any]] = {
    "a quantifier twice": {"guided_regex": "foo**"},
    "an unclosed group": {"guided_regex": "(foo"},
    "no type": {"response_format": schema_format({"type": "strin"})},
    "a number for a type": {"response_format": schema_format({"type": 5})},
    "a schema that is none": {"response_format": schema_format([])},  # type: ignore[arg-type]
    "10,000 levels": {"guided_json": DEEP},
    "65 levels": {"guided_json": '{"items":' * 65 + "{}" + "}" * 65},
    "a huge enum": {"guided_json": {"enum": ["x" * 20 + str(i) for i in range(20_000)]}},
    "a keyword that is not supported": {"guided_json": {"type": "array", "uniqueItems": True}},
    "a reference to elsewhere": {"guided_json": {"$ref": "http://127.0.0.1:9/schema.json"}},
    "nothing to say": {"guided_grammar": "start: start"},
    "compiles for ever": {
        "guided_json": {"allOf": [{"type": "integer", "multipleOf": m} for m in (101, 103, 107, 109)]}
    },
    "overflows a stack": {"guided_json": {"$defs": {**CHAIN, "d1000": {"not": {}}}, "$ref": "#/$defs/d0"}},
}


@pytest.mark.case("C19")
def test_bad_ones_cost_one_400_each_while_streams_go_on(server: Server) -> None:
    """No schema, regex or grammar ends the engine, or another's answer."""
    engine = server.engine_pid

    def stream(seed: int) -> list[tuple[str, str]]:
        return answers(server, prompt="Count.", seed=seed, stream=True, ignore_eos=True, max_tokens=150)

    def ask(fields: dict[str, Any]) -> tuple[int, bytes]:
        return chat(server, **fields)

    with ThreadPoolExecutor(16) as pool:
        streams = [pool.submit(stream, seed) for seed in range(3)]
        refusals = dict(zip(BAD, pool.map(ask, BAD.values()), strict=True))
        good = answers(server, seed=3, response_format=schema_format(SCHEMAS["person"]))
        for running in streams:
            assert [reason for _, reason in running.result()] == ["length"]
    for name, (status, body) in refusals.items():
        assert status == 400, (name, body)
        error = json.loads(body)["error"]
        assert error["type"] == "invalid_request_error" and len(error["message"]) < 200, (name, error)
    assert [reason for _, reason in good] == ["stop"]
    assert server.engine_pid == engine
    assert server.wait_idle()["problems"] == []
