"""Server-sent events as their bytes come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.drivers.events import EventReader, EventTooLongError

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)


@given(st.lists(LINE), st.sets(st.integers(1, 300)), st.sampled_from(["\n", "\r\n"]))
def test_events_are_whole_however_they_are_cut(lines: list[str], cuts: set[int], end: str) -> None:
    data = "".join(f": comment{end}event: x{end}data: {line}{end}{end}" for line in lines).encode()
    reader, at = EventReader(), 0
    found = []
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        found += reader.feed(data[at:cut])
        at = cut
    assert found == [line.encode() for line in lines]


def test_lines_of_one_event_are_joined_and_one_space_is_cut_off() -> None:
    assert EventReader().feed(b"data:a\ndata:  b\n\n") == [b"a\n b"]


def test_a_byte_order_mark_is_no_part_of_the_first_event() -> None:
    reader = EventReader()
    assert reader.feed(b"\xef\xbb") + reader.feed(b"\xbfdata: a\n\n") == [b"a"]
    assert reader.feed(b"\xef\xbb\xbfdata: b\n\n") == []


def test_an_event_that_has_not_ended_is_none_yet() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\n") == [b"a"]
    assert reader.feed(b"\n") == []


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.drivers.events._MAX_EVENT", 100)
    with pytest.raises(EventTooLongError):
        EventReader().feed(b"data: " + b"a" * 200)
