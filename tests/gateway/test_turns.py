"""What a turn may build on, and one turn of a conversation at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError, ErrorKind
from gateway.openai.responses.wire import ResponseWire
from gateway.responses.records import ConversationRecord, ItemRecord, ResponseRecord, StateSettings
from gateway.responses.store import StateStore
from gateway.responses.turns import BusyConversations, Past, RecentTurns, past_of, with_unkept
from gateway.submission import session_name
from gateway.tenants import Tenant

ACME, GUEST = Tenant("acme", b"a"), Tenant("guest", b"g")
ASKED, ANSWERED = ItemRecord("i", b"{}"), ItemRecord("o", b"{}")


def record(response_id: str, status: str = "completed", **fields: Any) -> ResponseRecord:
    known: dict[str, Any] = {
        "tenant": "acme", "session": "s", "previous_id": None, "conversation_id": None, "created_at": 1.0,
        "body": b"{}", "inputs": (ASKED,), "outputs": (ANSWERED,),
    }  # fmt: skip
    return ResponseRecord(id=response_id, status=status, **{**known, **fields})


def wire(**fields: Any) -> ResponseWire:
    return msgspec.convert(fields, ResponseWire)


@pytest.fixture
async def store() -> AsyncIterator[StateStore]:
    store = await asyncio.to_thread(StateStore.open, StateSettings())
    yield store
    await asyncio.to_thread(store.close)


# ---- the past of a turn ----------------------------------------------------------------------------


async def test_a_first_turn_has_no_past(store: StateStore) -> None:
    assert await past_of(wire(), ACME, store, None) == Past()


async def test_a_turn_builds_on_all_turns_before_it(store: StateStore) -> None:
    await store.put_response(record("r1"))
    await store.put_response(record("r2", "incomplete", previous_id="r1"))
    past = await past_of(wire(previous_response_id="r2"), ACME, store, None)
    assert past == Past((ASKED, ANSWERED) * 2, "s", is_kept=True)


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
async def test_nothing_follows_what_was_not_delivered(store: StateStore, status: str) -> None:
    await store.put_response(record("r1", status))
    with pytest.raises(ApiError) as caught:
        await past_of(wire(previous_response_id="r1"), ACME, store, None)
    assert caught.value.kind is ErrorKind.PREVIOUS_NOT_FOUND


async def test_what_is_not_there_or_of_another_tenant_is_unknown(store: StateStore) -> None:
    await store.put_response(record("r1"))
    await store.create_conversation(ConversationRecord("c1", "acme", 1.0, b"{}"))
    for tenant, fields in (
        (ACME, {"previous_response_id": "r2"}),
        (GUEST, {"previous_response_id": "r1"}),
        (ACME, {"conversation": "c2"}),
        (GUEST, {"conversation": {"id": "c1"}}),
    ):
        with pytest.raises(ApiError) as caught:
            await past_of(wire(**fields), tenant, store, None)
        assert caught.value.status == 404
        assert caught.value.param in fields


async def test_a_turn_of_a_conversation_has_its_items_and_its_session(store: StateStore) -> None:
    await store.create_conversation(ConversationRecord("c1", "acme", 1.0, b"{}"), (ASKED,))
    past = await past_of(wire(conversation={"id": "c1"}), ACME, store, None)
    assert past == Past((ASKED,), session_name(ACME, "conversation", "c1"))
    assert await past_of(wire(conversation="c1"), ACME, store, None) == past


# ---- what a connection remembers -------------------------------------------------------------------


async def test_what_nobody_keeps_can_be_built_on_where_it_was_made(store: StateStore) -> None:
    recent = RecentTurns(4, 10**6)
    recent.remember(Past(), record("r1"))
    past = await past_of(wire(previous_response_id="r1"), ACME, store, recent)
    assert past == Past((ASKED, ANSWERED), "s", is_kept=False)
    recent.remember(past, record("r2"))
    assert len((await past_of(wire(previous_response_id="r2"), ACME, store, recent)).items) == 4
    with pytest.raises(ApiError):
        await past_of(wire(previous_response_id="r1"), ACME, store, None)


def test_a_turn_that_is_stored_brings_the_history_that_nobody_else_keeps() -> None:
    before = (ItemRecord("b", b"{}"),)
    stored = with_unkept(Past(before, "s", is_kept=False), record("r2", previous_id="r1"))
    assert (stored.previous_id, stored.inputs, stored.outputs) == (None, (*before, ASKED), (ANSWERED,))
    kept = record("r2", previous_id="r1")
    assert with_unkept(Past(before, "s"), kept) == kept


async def test_what_was_remembered_must_have_been_delivered_too(store: StateStore) -> None:
    recent = RecentTurns(4, 10**6)
    recent.remember(Past(), record("r1", "cancelled"))
    with pytest.raises(ApiError):
        await past_of(wire(previous_response_id="r1"), ACME, store, recent)


def test_only_the_last_turns_are_remembered() -> None:
    recent = RecentTurns(3, 10**6)
    for number in range(5):
        recent.remember(Past(), record(f"r{number}"))
    assert [recent.find(f"r{number}") is not None for number in range(5)] == [False, False, True, True, True]
    recent.forget("r3")
    recent.forget("r3")
    assert recent.find("r3") is None


def test_only_so_many_bytes_are_remembered_and_always_the_last_turn() -> None:
    large = ItemRecord("i", b"x" * 100)
    recent = RecentTurns(10, 250)
    for number in range(4):
        recent.remember(Past(), record(f"r{number}", inputs=(large,)))
        assert 100 < recent.num_bytes <= 250
    assert [recent.find(f"r{number}") is not None for number in range(4)] == [False, False, True, True]
    recent.remember(Past((large,) * 3), record("r4"))
    assert [recent.find(f"r{number}") is not None for number in range(5)] == [False] * 4 + [True]
    recent.forget("r4")
    assert recent.num_bytes == 0


# ---- one turn at a time ----------------------------------------------------------------------------


def test_a_conversation_has_one_turn_at_a_time() -> None:
    busy = BusyConversations()
    with busy.held(ACME, "c1"):
        with pytest.raises(ApiError) as caught, busy.held(ACME, "c1"):
            pass
        assert (caught.value.status, caught.value.param) == (409, "conversation")
        assert caught.value.retry_after_s
        with busy.held(ACME, "c2"), busy.held(GUEST, "c1"):
            pass
    with busy.held(ACME, "c1"):
        pass


def test_it_is_free_again_however_its_turn_ends() -> None:
    busy = BusyConversations()
    with pytest.raises(ZeroDivisionError), busy.held(ACME, "c1"):
        raise ZeroDivisionError
    with busy.held(ACME, "c1"):
        pass


def test_turns_of_no_conversation_hold_nothing() -> None:
    busy = BusyConversations()
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(busy.held(ACME, None))
