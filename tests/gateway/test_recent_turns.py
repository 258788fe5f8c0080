"""What a connection remembers of turns that nothing keeps: the last ones, so many and so large."""

from __future__ import annotations

from gateway.responses.records import ItemRecord, ResponseRecord
from gateway.responses.turns import Past, RecentTurns


def item(size: int) -> ItemRecord:
    return ItemRecord("msg_1", b"x" * size)


def record(name: str, size: int) -> ResponseRecord:
    return ResponseRecord(
        id=name, tenant="", session="", previous_id=None, conversation_id=None, status="completed",
        created_at=0.0, body=b"x" * size, inputs=(item(size),), outputs=(item(size),), making=b"",
    )  # fmt: skip


def test_the_last_ones_are_found() -> None:
    recent = RecentTurns(max_turns=2, max_bytes=10**6)
    for name in "abc":
        recent.remember(Past(), record(name, 1))
    assert recent.find("a") is None
    assert [turn.record.id for name in "bc" if (turn := recent.find(name))] == ["b", "c"]
    recent.forget("b")
    recent.forget("b")
    assert recent.num_bytes == 3


def test_they_take_so_much_with_what_they_were_built_on() -> None:
    recent = RecentTurns(max_turns=10, max_bytes=100)
    recent.remember(Past(), record("a", 10))
    recent.remember(Past((item(30),)), record("b", 10))
    assert recent.num_bytes == 90
    recent.remember(Past(), record("c", 10))
    assert recent.find("a") is None
    assert recent.num_bytes == 90
    recent.remember(Past(), record("large", 1000))
    assert recent.find("large") is not None, "the last one is remembered whatever it takes"
    assert recent.num_bytes == 3000
