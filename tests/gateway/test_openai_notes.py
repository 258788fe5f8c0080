"""What fields say beside their JSON types."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gateway.openai.notes import Figure, one_of, ranges_of, told
from gateway.openai.ranges import Range
from gateway.openai.wire import GenerationFields


class Sample(msgspec.Struct):
    plain: int
    ranged: Annotated[float | None, Range(0, 2)] = None
    told: Annotated[int | None, told("A count.", minimum=0, maximum=Figure.WINDOW)] = None
    chosen: Annotated[str, one_of(("a", "b"))] = "a"


def test_ranges_by_field() -> None:
    assert ranges_of(Sample) == {"ranged": Range(0, 2)}


def test_the_ranges_of_requests_are_these() -> None:
    assert set(ranges_of(GenerationFields)) == {
        "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "length_penalty",
    }  # fmt: skip


def test_notes_are_not_checked_by_the_parser() -> None:
    parsed = msgspec.json.decode(b'{"plain":1,"ranged":9,"told":-5,"chosen":"z"}', type=Sample)
    assert (parsed.ranged, parsed.told, parsed.chosen) == (9, -5, "z")


def test_a_range_in_the_words_of_json_schema() -> None:
    assert Range(0, 2).schema == {"minimum": 0, "maximum": 2}
    assert Range(0, 1, low_is_open=True).schema == {"exclusiveMinimum": 0, "maximum": 1}
