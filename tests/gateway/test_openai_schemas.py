"""Schemas of structs: of what is asked, and of what is answered."""

from __future__ import annotations

from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import UNSET, UnsetType

from gateway.openai.notes import REQUIRED, Exactly, Figure, told
from gateway.openai.ranges import Range
from gateway.openai.schemas import component_schemas, ref, structs_in

FIGURES = {Figure.WINDOW: 7, Figure.MODEL_NAMES: ["m", None]}


class Inner(msgspec.Struct):
    name: str


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    needed: Annotated[list[Inner] | None, REQUIRED, told(minItems=1)] = None
    either: Annotated[str | int | None, REQUIRED] = None
    share: Annotated[float | None, Range(0, 1, low_is_open=True)] = None
    count: Annotated[int | None, told(minimum=0, maximum=Figure.WINDOW)] = None
    model: Annotated[str | None, told(enum=Figure.MODEL_NAMES)] = None
    odd: Annotated[str | list[int] | None, Exactly({"maximum": Figure.WINDOW})] = None
    suffix: Any = None  # in NEUTRAL


class Part(msgspec.Struct):
    text: str | None = None


class Answered(msgspec.Struct, kw_only=True):
    kind: str = "answer"
    parts: list[Part]
    extra: int | UnsetType | None = UNSET


@pytest.fixture(scope="module")
def schemas() -> Any:
    return component_schemas([Asked], [Answered], FIGURES)


def is_valid(schemas: Any, struct: type[msgspec.Struct], value: Any) -> bool:
    return jsonschema_rs.is_valid({**ref(struct), "components": {"schemas": schemas}}, value)


ASKED = {"needed": [{"name": "x"}], "either": 1}


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"needed": []}, False),
        ({"needed": None}, False),
        ({"needed": [{}]}, False),
        ({"either": "x"}, True),
        ({"either": None}, False),
        ({"share": 1}, True),
        ({"share": None}, True),
        ({"share": 0}, False),
        ({"count": 7}, True),
        ({"count": 8}, False),
        ({"count": None}, True),
        ({"model": "m"}, True),
        ({"model": None}, True),
        ({"model": "x"}, False),
        ({"odd": 8}, False),
        ({"suffix": ""}, True),
        ({"suffix": None}, True),
        ({"suffix": "x"}, False),
        ({"unknown": None}, False),
    ],
)
def test_what_may_be_asked(schemas: Any, changes: dict[str, Any], valid: bool) -> None:
    assert is_valid(schemas, Asked, {**ASKED, **changes}) == valid


def test_what_must_be_asked(schemas: Any) -> None:
    for name in ASKED:
        assert not is_valid(schemas, Asked, {key: value for key, value in ASKED.items() if key != name})


@pytest.mark.parametrize(
    "answer",
    [Answered(parts=[]), Answered(parts=[Part(), Part("x")], extra=1), Answered(parts=[], extra=None)],
)
def test_what_is_answered_is_valid(schemas: Any, answer: Answered) -> None:
    assert is_valid(schemas, Answered, msgspec.to_builtins(answer))


@pytest.mark.parametrize(
    "value",
    [
        {"parts": []},  # a field with a default is always there
        {"kind": "answer", "parts": [{}]},
        {"kind": "answer", "parts": [], "more": 1},
        {"kind": "answer", "parts": [{"text": None, "more": 1}]},
        {"kind": None, "parts": []},
    ],
)
def test_nothing_is_missing_from_an_answer_and_nothing_is_in_it_besides(schemas: Any, value: Any) -> None:
    assert not is_valid(schemas, Answered, value)


def test_structs_inside_structs_are_found() -> None:
    assert structs_in([Asked, Answered]) == {Asked, Inner, Answered, Part}


def test_a_struct_is_either_asked_with_or_answered_with() -> None:
    with pytest.raises(AssertionError):
        component_schemas([Asked], [Inner], FIGURES)
