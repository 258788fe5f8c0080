"""n, best_of and beam search, as a request asks for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.messages import BeamParams
from gateway.errors import ApiError
from gateway.openai.choices import Choices, check_choices
from gateway.openai.wire import GenerationFields


def check(**fields: Any) -> Choices:
    return check_choices(msgspec.convert(fields, GenerationFields), max_seqs=8)


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(**fields)
    assert caught.value.status == 400
    return caught.value


def test_one_answer_unless_more_are_asked_for() -> None:
    assert check() == check(n=1) == check(best_of=1) == Choices(1, 1)
    assert check(n=3) == Choices(3, 3)


def test_the_best_of_several() -> None:
    assert check(n=2, best_of=5) == Choices(2, 5)
    assert refused(n=3, best_of=2).param == "best_of"
    assert refused(best_of=4, stream=True).param == "best_of"
    assert check(n=4, best_of=4, stream=True) == Choices(4, 4)


def test_beams_are_as_many_as_best_of_or_n() -> None:
    assert check(use_beam_search=True, n=3) == Choices(3, 3, BeamParams(3))
    found = check(
        use_beam_search=True, n=2, best_of=5, length_penalty=0.5, early_stopping="never", stream=True
    )
    assert found == Choices(2, 2, BeamParams(5, 0.5, "never"))


@pytest.mark.parametrize("value", [True, False, "never"])
def test_early_stopping(value: bool | str) -> None:
    beam = check(use_beam_search=True, n=2, early_stopping=value).beam
    assert beam is not None
    assert beam.early_stopping is value or beam.early_stopping == value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 1}, "use_beam_search"),
        ({"n": 2, "temperature": 0.7}, "temperature"),
        ({"n": 2, "top_p": 0.9}, "top_p"),
        ({"n": 2, "top_k": 40}, "top_k"),
        ({"n": 2, "min_p": 0.1}, "min_p"),
        ({"n": 2, "stop": "x"}, "stop"),
        ({"n": 2, "length_penalty": 11.0}, "length_penalty"),
        ({"n": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"n": 2, "early_stopping": "soon"}, "early_stopping"),
    ],
)
def test_what_makes_no_sense_in_a_beam_search(fields: dict[str, Any], param: str) -> None:
    assert refused(use_beam_search=True, **fields).param == param


def test_what_a_beam_search_does_not_draw_may_be_named_at_its_neutral_value() -> None:
    check(use_beam_search=True, n=2, temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0, stop=[])


@pytest.mark.parametrize("fields", [{"length_penalty": 1.0}, {"early_stopping": False}])
def test_settings_of_beams_without_beams(fields: dict[str, Any]) -> None:
    assert refused(n=2, **fields).param == next(iter(fields))
