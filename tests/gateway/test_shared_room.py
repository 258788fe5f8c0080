"""Room that tenants share: one fills nearly all of it, and never all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.shared_room import Holder, SharedRoom, portion_of

A, B, C = (Holder(name, portion_of(1, 1)) for name in "abc")


def fill(room: SharedRoom, *holders: Holder) -> dict[str, int]:
    """Let all of them take one after the other until none gets any more."""
    while any(not room.lacking(holder, 1) for holder in holders):
        for holder in holders:
            if not room.lacking(holder, 1):
                room.take(holder, 1)
    return {holder.name: room.held(holder) for holder in holders}


def test_who_does_not_share_takes_all() -> None:
    room = SharedRoom(320)
    assert fill(room, Holder()) == {"": 320}
    assert room.lacking(Holder(), 5) == 5


def test_one_among_others_leaves_a_fifth_and_they_take_it() -> None:
    room = SharedRoom(320)
    assert fill(room, A) == {"a": 256}
    assert fill(room, A, B)["b"] > 45
    assert room.used < 320


def test_together_from_the_start_they_get_as_much() -> None:
    held = fill(SharedRoom(320), A, B, C)
    assert max(held.values()) - min(held.values()) <= 1
    assert sum(held.values()) > 280


def test_the_heavier_may_hold_more() -> None:
    heavy, light = Holder("heavy", portion_of(4, 4)), Holder("light", portion_of(1, 4))
    for first, second, expected in ((heavy, light, (240, 30)), (light, heavy, (150, 120))):
        room = SharedRoom(300)
        held = (fill(room, first)[first.name], fill(room, second)[second.name])
        assert held == expected


def test_what_is_lacking_is_enough_when_it_is_given_back() -> None:
    room = SharedRoom(100)
    fill(room, A)
    lacking = room.lacking(A, 10)
    assert lacking > 0
    room.give_back(A, lacking)
    assert room.lacking(A, 10) == 0


def test_who_wants_no_more_lacks_nothing() -> None:
    room = SharedRoom(100)
    fill(room, A)
    room.take(B, 10)
    assert (room.lacking(A, 0), room.lacking(A, 1) > 0) == (0, True)


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.01, 100), st.integers(1, 40)), max_size=60),
)
def test_never_more_than_all_and_always_some_for_who_has_none(
    capacity: int, wishes: list[tuple[str, float, int]]
) -> None:
    room = SharedRoom(capacity)
    taken: list[tuple[Holder, int]] = []
    for name, weight, amount in wishes:
        holder = Holder(name, portion_of(weight, 100))
        if not room.lacking(holder, amount):
            room.take(holder, amount)
            taken.append((holder, amount))
        free = capacity - room.used
        assert 0 <= free <= capacity
        newcomer = Holder("new", portion_of(0.01, 100))
        assert not room.lacking(newcomer, free)
    for holder, amount in taken:
        room.give_back(holder, amount)
    assert (room.used, room.held(A)) == (0, 0)
