"""The state store by its calls: chains, deletion, isolation, bounds, expiry, files, death of a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import ApiError, ErrorKind
from gateway.responses.ledger import Ledger
from gateway.responses.records import (
    ConversationFullError,
    ConversationRecord,
    DuplicateItemError,
    HistoryGoneError,
    ItemRecord,
    ResponseRecord,
    StateFullError,
    StateSettings,
    UnknownItemError,
)
from gateway.responses.schema import ROW_BYTES, VERSION, StateFileError
from gateway.responses.store import StateStore

DAY_S = 24 * 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def items(*names: str, num_bytes: int = 10) -> tuple[ItemRecord, ...]:
    return tuple(ItemRecord(name, b'{"x":"%s"}' % (b"x" * (num_bytes - 8))) for name in names)


def turn(number: int, previous: int | None = None, tenant: str = "a", **fields: object) -> ResponseRecord:
    """Response ``r<number>``, which asked ``i<number>`` and said ``o<number>``."""
    made = ResponseRecord(
        id=f"r{number}",
        tenant=tenant,
        session="s",
        previous_id=None if previous is None else f"r{previous}",
        conversation_id=None,
        status="completed",
        created_at=float(number),
        body=b'{"id": "r%d", "status": "completed"}' % number,
        inputs=items(f"i{number}"),
        outputs=items(f"o{number}"),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def conversation(name: str = "c", tenant: str = "a", created_at: float = 5.0) -> ConversationRecord:
    return ConversationRecord(name, tenant, created_at, b"{}")


def ids(history: tuple[ItemRecord, ...] | None) -> list[str] | None:
    return None if history is None else [item.id for item in history]


@contextmanager
def open_ledger(settings: StateSettings | None = None, clock: Clock | None = None) -> Iterator[Ledger]:
    """Recounted at its end."""
    ledger = Ledger(settings or StateSettings(), clock or Clock())
    try:
        yield ledger
        assert ledger.check() == []
    finally:
        ledger.close()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with open_ledger() as ledger:
        yield ledger


# ---- chains --------------------------------------------------------------------------------------


def test_a_response_comes_back_as_it_was_put(ledger: Ledger) -> None:
    record = turn(1, session="chain", inputs=items("i1", "i2"), outputs=())
    ledger.put_response(record)
    assert ledger.response("a", "r1") == record
    assert ledger.history("a", "r1") == record.inputs


def test_a_history_is_the_whole_chain_oldest_first_and_forks_share_its_beginning(ledger: Ledger) -> None:
    for record in (turn(1), turn(2, 1), turn(3, 2), turn(4, 1)):
        ledger.put_response(record)
    assert ids(ledger.history("a", "r3")) == ["i1", "o1", "i2", "o2", "i3", "o3"]
    assert ids(ledger.history("a", "r4")) == ["i1", "o1", "i4", "o4"]
    found = ledger.response("a", "r3")
    assert found is not None
    assert found.previous_id == "r2"


def test_long_chains_are_no_problem(ledger: Ledger) -> None:
    for number in range(500):
        ledger.put_response(turn(number, number - 1 if number else None))
    assert len(ledger.history("a", "r499") or ()) == 1000
    for number in range(500):
        assert ledger.delete_response("a", f"r{number}") is not None
    assert ledger.num_bytes() == 0


def test_what_has_become_of_a_response_replaces_it(ledger: Ledger) -> None:
    ledger.put_response(turn(1, status="in_progress", outputs=()))
    ledger.put_response(turn(1))
    assert ledger.response("a", "r1") == turn(1)


def test_nobody_builds_on_what_is_not_there(ledger: Ledger) -> None:
    with pytest.raises(HistoryGoneError):
        ledger.put_response(turn(2, 1))
    ledger.put_response(turn(1))
    with pytest.raises(HistoryGoneError):
        ledger.put_response(turn(2, 1, tenant="b"))
    assert ledger.response("a", "r2") is None


# ---- deletion ------------------------------------------------------------------------------------


def test_a_deleted_response_is_unknown_but_stays_in_the_history_of_later_turns(ledger: Ledger) -> None:
    for record in (turn(1), turn(2, 1), turn(3, 2)):
        ledger.put_response(record)
    assert ledger.delete_response("a", "r1") == turn(1)
    assert ledger.delete_response("a", "r2") == turn(2, 1)
    assert ids(ledger.history("a", "r3")) == ["i1", "o1", "i2", "o2", "i3", "o3"]
    for gone in ("r1", "r2"):
        assert ledger.response("a", gone) is None
        assert ledger.history("a", gone) is None
        assert ledger.delete_response("a", gone) is None
        with pytest.raises(HistoryGoneError):
            ledger.put_response(turn(9, int(gone[1:])))
    ledger.delete_response("a", "r3")
    assert ledger.num_bytes() == 0


def test_what_is_deleted_while_it_runs_never_comes_back(ledger: Ledger) -> None:
    ledger.put_response(turn(1, status="in_progress"))
    ledger.delete_response("a", "r1")
    assert ledger.check() == []
    ledger.put_response(turn(1))
    assert ledger.response("a", "r1") is None
    assert ledger.num_bytes() == 0


def test_what_was_deleted_is_not_to_be_found_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with open_ledger(StateSettings(path)) as ledger:
        ledger.put_response(turn(1, body=b'"a secret"' * 1000))
        ledger.put_response(turn(2))
        ledger.delete_response("a", "r1")
    assert b"secret" not in path.read_bytes()
    assert b"r2" in path.read_bytes()


# ---- tenants -------------------------------------------------------------------------------------


def test_what_others_have_is_unknown(ledger: Ledger) -> None:
    ledger.put_response(turn(1))
    ledger.create_conversation(conversation(), items("m1"))
    assert ledger.response("b", "r1") is None
    assert ledger.history("b", "r1") is None
    assert ledger.delete_response("b", "r1") is None
    assert ledger.conversation("b", "c") is None
    assert ledger.update_conversation("b", "c", b'{"k": "v"}') is None
    assert ledger.add_items("b", "c", items("m2")) is None
    assert ledger.conversation_items("b", "c", None, 20, "asc") is None
    assert ledger.conversation_history("b", "c") is None
    assert ledger.item("b", "c", "m1") is None
    assert ledger.delete_item("b", "c", "m1") is None
    assert ledger.delete_conversation("b", "c") is None
    with pytest.raises(HistoryGoneError):
        ledger.put_turn(turn(2, tenant="b", conversation_id="c"))
    assert ledger.response("a", "r1") == turn(1)
    assert ids(ledger.conversation_history("a", "c")) == ["m1"]


def test_two_tenants_may_have_the_same_ids(ledger: Ledger) -> None:
    ledger.put_response(turn(1))
    ledger.put_response(turn(1, tenant="b", inputs=items("other")))
    ledger.create_conversation(conversation())
    ledger.create_conversation(conversation(tenant="b"), items("m"))
    assert ids(ledger.history("a", "r1")) == ["i1", "o1"]
    assert ids(ledger.history("b", "r1")) == ["other", "o1"]
    assert ledger.conversation_history("a", "c") == ()


# ---- conversations -------------------------------------------------------------------------------


def test_items_are_listed_in_pages_both_ways(ledger: Ledger) -> None:
    ledger.create_conversation(conversation(), items(*"abcde"))
    for order, names in (("asc", "abcde"), ("desc", "edcba")):
        found, after, has_more = "", None, True
        while has_more:
            page = ledger.conversation_items("a", "c", after, 2, order)  # type: ignore[arg-type]
            assert page is not None
            assert len(page.items) <= 2
            found += "".join(item.id for item in page.items)
            after, has_more = page.items[-1].id, page.has_more
        assert found == names
    with pytest.raises(UnknownItemError):
        ledger.conversation_items("a", "c", "nobody", 2, "asc")


def test_items_come_and_go(ledger: Ledger) -> None:
    ledger.create_conversation(conversation(), items("a", "b"))
    assert ledger.item("a", "c", "b") == items("b")[0]
    left = ledger.delete_item("a", "c", "b")
    assert left is not None
    assert left.num_items == 1
    assert ledger.item("a", "c", "b") is None
    assert ledger.delete_item("a", "c", "b") is None
    ledger.add_items("a", "c", items("c", "b"))
    assert ids(ledger.conversation_history("a", "c")) == ["a", "c", "b"]
    with pytest.raises(DuplicateItemError) as twice:
        ledger.add_items("a", "c", items("d", "a"))
    assert twice.value.item_id == "a"
    assert ids(ledger.conversation_history("a", "c")) == ["a", "c", "b"]  # all or none


def test_a_conversation_takes_so_many_items_and_no_more() -> None:
    with open_ledger(StateSettings(max_items=3)) as ledger:
        ledger.create_conversation(conversation(), items("a", "b"))
        with pytest.raises(ConversationFullError):
            ledger.add_items("a", "c", items("c", "d"))
        assert ledger.add_items("a", "c", items("c")) is not None
        with pytest.raises(ConversationFullError):
            ledger.put_turn(turn(1, conversation_id="c"))
        assert ledger.response("a", "r1") is None


def test_the_least_recently_used_conversation_makes_room_for_one_more() -> None:
    with open_ledger(StateSettings(max_conversations=2)) as ledger:
        for name in ("c1", "c2"):
            ledger.create_conversation(conversation(name))
        ledger.create_conversation(conversation("c1", tenant="b"))
        ledger.conversation("a", "c1")
        ledger.create_conversation(conversation("c3"))
        assert ledger.conversation("a", "c2") is None
        assert ledger.conversation("a", "c1") is not None
        assert ledger.conversation("b", "c1") is not None


def test_a_turn_enters_its_conversation_as_a_whole(ledger: Ledger) -> None:
    ledger.create_conversation(conversation(), items("m"))
    ledger.put_response(turn(1, status="in_progress", outputs=(), conversation_id="c"))
    assert ids(ledger.conversation_history("a", "c")) == ["m"]
    ledger.put_turn(turn(1, conversation_id="c"))
    assert ids(ledger.conversation_history("a", "c")) == ["m", "i1", "o1"]
    ledger.put_turn(turn(2, conversation_id="c"))
    assert ids(ledger.conversation_history("a", "c")) == ["m", "i1", "o1", "i2", "o2"]


def test_a_turn_that_was_deleted_meanwhile_never_enters_its_conversation(ledger: Ledger) -> None:
    ledger.create_conversation(conversation())
    ledger.put_response(turn(1, status="in_progress", outputs=(), conversation_id="c"))
    ledger.delete_response("a", "r1")
    ledger.put_turn(turn(1, conversation_id="c"))
    assert ledger.conversation_history("a", "c") == ()


def test_a_chain_that_leaves_a_conversation_has_what_that_had_before(ledger: Ledger) -> None:
    ledger.create_conversation(conversation(), items("m"))
    ledger.put_turn(turn(1, conversation_id="c"))
    ledger.put_turn(turn(2, conversation_id="c"))
    ledger.put_response(turn(3, 1))
    assert ids(ledger.history("a", "r3")) == ["m", "i1", "o1", "i3", "o3"]
    assert ids(ledger.history("a", "r2")) == ["m", "i1", "o1", "i2", "o2"]
    ledger.delete_item("a", "c", "m")
    assert ids(ledger.history("a", "r3")) == ["i1", "o1", "i3", "o3"]
    ledger.delete_conversation("a", "c")
    assert ledger.history("a", "r3") is None
    assert ledger.response("a", "r3") is not None


# ---- bounds --------------------------------------------------------------------------------------


def settings_for(num_responses: int, **fields: object) -> StateSettings:
    """Room for so many responses of 1,000 bytes beside their row."""
    return replace(StateSettings(max_bytes=num_responses * (1000 + ROW_BYTES)), **fields)  # type: ignore[arg-type]


def sized(number: int, previous: int | None = None, **fields: object) -> ResponseRecord:
    """A response of 1,000 bytes: a body beside two empty lists of items."""
    return turn(number, previous, body=b"x" * 998, inputs=(), outputs=(), **fields)


def known(ledger: Ledger, numbers: range, tenant: str = "a") -> list[int]:
    return [number for number in numbers if ledger.response(tenant, f"r{number}") is not None]


def test_at_its_size_what_was_used_least_recently_goes() -> None:
    with open_ledger(settings_for(12)) as ledger:
        for number in range(12):
            ledger.put_response(sized(number))
        ledger.response("a", "r0")
        ledger.put_response(sized(12))
        assert known(ledger, range(13)) == [0, *range(2, 13)]


def test_a_response_that_is_used_keeps_the_turns_before_it() -> None:
    with open_ledger(settings_for(12)) as ledger:
        for number in range(3):
            ledger.put_response(sized(number, number - 1 if number else None))
        for number in range(3, 30):
            ledger.put_response(sized(number))
            assert ledger.history("a", "r2") is not None
        assert known(ledger, range(3)) == [0, 1, 2]


def test_a_chain_that_nobody_uses_goes_from_its_end() -> None:
    with open_ledger(settings_for(12)) as ledger:
        for number in range(3):
            ledger.put_response(sized(number, number - 1 if number else None))
        for number in range(3, 14):
            ledger.put_response(sized(number))
        assert known(ledger, range(3)) == [0]
        assert ids(ledger.history("a", "r0")) == []


def test_who_has_little_loses_nothing_to_who_has_much() -> None:
    with open_ledger(settings_for(12)) as ledger:
        for number in range(5):
            ledger.put_response(sized(number, tenant="small"))
        for number in range(50):
            ledger.put_response(sized(number, tenant="greedy"))
        assert known(ledger, range(5), "small") == [0, 1, 2, 3, 4]
        assert known(ledger, range(50), "greedy") == list(range(43, 50))
        for number in range(5, 10):
            ledger.put_response(sized(number, tenant="small"))
        assert known(ledger, range(50), "greedy") == list(range(44, 50))


def test_what_runs_is_not_evicted_and_what_is_too_large_is_refused_without_a_trace() -> None:
    with open_ledger(settings_for(12)) as ledger:
        ledger.put_response(turn(0, status="in_progress"))
        for number in range(1, 21):
            ledger.put_response(sized(number))
        assert known(ledger, range(21)) == [0, *range(10, 21)]
        with pytest.raises(StateFullError):
            ledger.put_response(turn(21, body=b"x" * 5000))
        assert known(ledger, range(22)) == [0, *range(10, 21)]


def test_one_history_takes_a_quarter_at_most() -> None:
    with open_ledger(settings_for(12)) as ledger:
        for number in range(3):
            ledger.put_response(sized(number, number - 1 if number else None))
        with pytest.raises(StateFullError):
            ledger.put_response(sized(3, 2))
        ledger.create_conversation(conversation(), items("a", "b", num_bytes=1000))
        with pytest.raises(StateFullError):
            ledger.add_items("a", "c", items("c", num_bytes=1000))
        assert ids(ledger.conversation_history("a", "c")) == ["a", "b"]


def test_what_was_not_used_for_so_long_expires() -> None:
    clock = Clock()
    with open_ledger(StateSettings(ttl_s=DAY_S), clock) as ledger:
        for record in (turn(1), turn(2, 1), turn(3)):
            ledger.put_response(record)
        ledger.create_conversation(conversation(), items("m"))
        clock.now += DAY_S / 2
        ledger.history("a", "r2")
        clock.now += DAY_S / 2
        assert ledger.response("a", "r3") is None
        assert ledger.conversation("a", "c") is None
        assert ids(ledger.history("a", "r2")) == ["i1", "o1", "i2", "o2"]
        clock.now += DAY_S + 1
        ledger.tidy()
        assert ledger.num_bytes() == 0


@pytest.mark.parametrize("sizes", [(10,), (240,), (480,), (1000,), (2000,), (10, 300, 4000, 9000)])
def test_the_file_is_no_larger_than_it_may_be(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """What is counted is at least what the pages take, whatever the sizes of what comes and goes."""
    settings = StateSettings(tmp_path / "state", max_bytes=2**19)
    with open_ledger(settings) as ledger:
        for number in range(1000):
            size = sizes[number % len(sizes)]
            previous = number - 1 if number % 7 else None
            ledger.put_response(
                turn(number, previous, body=b"x" * size, inputs=items(f"i{number}", num_bytes=size))
            )
        assert ledger.num_bytes() > 0.95 * settings.max_bytes
    assert (tmp_path / "state").stat().st_size <= settings.max_bytes + 64 * 1024


# ---- files ---------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> StateSettings:
    return StateSettings(tmp_path / "state")


def test_everything_is_there_again_after_a_restart(file: StateSettings) -> None:
    with open_ledger(file) as ledger:
        for record in (turn(1), turn(2, 1)):
            ledger.put_response(record)
        ledger.create_conversation(conversation(), items("m"))
        ledger.put_turn(turn(3, conversation_id="c"))
        num_bytes = ledger.num_bytes()
    with open_ledger(file) as ledger:
        assert ids(ledger.history("a", "r2")) == ["i1", "o1", "i2", "o2"]
        assert ids(ledger.history("a", "r3")) == ["m", "i3", "o3"]
        assert ledger.num_bytes() == num_bytes


def test_a_smaller_size_holds_from_the_start(file: StateSettings) -> None:
    with open_ledger(file) as ledger:
        for number in range(100):
            ledger.put_response(sized(number))
    assert file.path is not None
    before = file.path.stat().st_size
    with open_ledger(settings_for(12, path=file.path)) as ledger:
        assert known(ledger, range(100)) == list(range(88, 100))
    assert file.path.stat().st_size < before / 2


def test_what_was_running_when_the_server_died_has_failed(file: StateSettings) -> None:
    unfinished = ItemRecord("o1", b'{"id":"o1","status":"in_progress","text":"half"}')
    done = ItemRecord("o2", b'{"id":"o2","status":"completed"}')
    body = {"id": "r1", "status": "in_progress", "error": None, "output": [json.loads(unfinished.body)]}
    running = turn(1, status="in_progress", body=json.dumps(body).encode(), outputs=(unfinished, done))
    with open_ledger(file) as ledger:
        ledger.put_response(running)
        ledger.put_response(turn(2, 1, status="queued"))
        ledger.put_response(turn(3, status="in_progress"))
        ledger.delete_response("a", "r3")
        ledger.put_response(turn(4))
    with open_ledger(file) as ledger:
        assert ledger.num_lost == 2
        found = ledger.response("a", "r1")
        assert found is not None
        shown = json.loads(found.body)
        assert found.status == shown["status"] == "failed"
        assert shown["error"]["code"] == "server_error"
        assert shown["output"][0] == {"id": "o1", "status": "incomplete", "text": "half"}
        assert [json.loads(item.body)["status"] for item in found.outputs] == ["incomplete", "completed"]
        assert ledger.response("a", "r4") == turn(4)
        for number in (1, 2, 4):
            ledger.delete_response("a", f"r{number}")
        assert ledger.num_bytes() == 0
    with open_ledger(file) as ledger:
        assert ledger.num_lost == 0


def test_only_the_owner_can_read_the_file(file: StateSettings) -> None:
    with open_ledger(file) as ledger:
        ledger.put_response(turn(1))
        assert file.path is not None
        for path in file.path.parent.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def refusal(settings: StateSettings) -> str:
    with pytest.raises(StateFileError) as refused:
        Ledger(settings, Clock())
    return str(refused.value)


def test_files_that_cannot_be_used_are_refused_in_a_sentence_and_left_alone(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_text("Dear diary, " * 1000)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE t (x)")
    database.close()
    for path, words in (
        (text, "not a database"),
        (other, "another program"),
        (tmp_path, "Cannot"),
        (tmp_path / "nowhere" / "state", "No such file or directory"),
    ):
        before = path.read_bytes() if path.is_file() else None
        message = refusal(StateSettings(path))
        assert words in message
        assert str(path) in message
        assert before is None or path.read_bytes() == before


@pytest.mark.parametrize(("version", "words"), [(VERSION + 1, "a newer version"), (VERSION - 1, "an older")])
def test_a_file_of_another_version_is_refused(file: StateSettings, version: int, words: str) -> None:
    with open_ledger(file) as ledger:
        ledger.put_response(turn(1))
    assert file.path is not None
    database = sqlite3.connect(file.path)
    database.execute(f"PRAGMA user_version = {version}")
    database.close()
    assert words in refusal(file)


def test_a_file_that_is_torn_is_refused(file: StateSettings) -> None:
    with open_ledger(file) as ledger:
        for number in range(100):
            ledger.put_response(sized(number))
    assert file.path is not None
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:1024] + os.urandom(len(whole) - 1024))
    assert "Cannot use the state file" in refusal(file)


def test_a_file_has_one_server_at_a_time(file: StateSettings) -> None:
    with open_ledger(file):
        assert "in use by another server" in refusal(file)
        again = subprocess.run([sys.executable, "-c", OTHER_SERVER, str(file.path)], capture_output=True)
        assert b"in use by another server" in again.stderr
    with open_ledger(file):
        pass


OTHER_SERVER = """
import sys
from pathlib import Path
from gateway.responses.ledger import Ledger
from gateway.responses.records import StateSettings
Ledger(StateSettings(Path(sys.argv[1])), lambda: 0.0)
"""
PUT_UNTIL_KILLED = """
import sys
from pathlib import Path
from gateway.responses.ledger import Ledger
from gateway.responses.records import StateSettings
from tests.gateway.test_state_store import turn
ledger = Ledger(StateSettings(Path(sys.argv[1])), lambda: 1_000_000.0)
for number in range(10**9):
    ledger.put_response(turn(number, number - 1 if number % 5 else None))
    print(number, flush=True)
"""


def test_what_was_put_outlives_the_death_of_the_process(file: StateSettings) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PUT_UNTIL_KILLED, str(file.path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in process.stdout]
    with open_ledger(file) as ledger:
        assert told == list(range(len(told)))
        for number in told:
            first = number - number % 5
            turns = [f"{kind}{turn}" for turn in range(first, number + 1) for kind in "io"]
            assert ids(ledger.history("a", f"r{number}")) == turns


# ---- the thread ----------------------------------------------------------------------------------


@pytest.fixture
async def store() -> AsyncIterator[StateStore]:
    ledger = await asyncio.to_thread(Ledger, StateSettings(), Clock())
    store = StateStore(ledger, max_pending=3)
    yield store
    await asyncio.to_thread(store.close)


async def test_the_store_never_blocks_the_loop(store: StateStore) -> None:
    await store.put_response(turn(1))
    await store.create_conversation(conversation(), items("m"))
    await store.put_turn(turn(2, conversation_id="c"))
    assert await store.response("a", "r1") == turn(1)
    assert ids(await store.history("a", "r2")) == ["m", "i2", "o2"]
    page = await store.conversation_items("a", "c", order="asc", limit=1)
    assert page is not None
    assert (ids(page.items), page.has_more) == (["m"], True)
    assert await store.item("a", "c", "i2") == items("i2")[0]
    assert await store.delete_item("a", "c", "i2") is not None
    assert await store.update_conversation("a", "c", b'{"k":"v"}') is not None
    assert ids(await store.conversation_history("a", "c")) == ["m", "o2"]
    assert await store.delete_conversation("a", "c") is not None
    assert await store.delete_response("a", "r1") == turn(1)
    assert any(thread.name == "tidegate-state" for thread in threading.enumerate())


@contextmanager
def held(store: StateStore) -> Iterator[None]:
    """The thread is busy meanwhile."""
    go, busy = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go.wait(10)

    store._thread.submit_call(hold)
    try:
        yield
    finally:
        go.set()


async def test_more_calls_than_may_wait_are_refused(store: StateStore) -> None:
    with held(store):
        while store.pending:
            await asyncio.sleep(0.001)
        puts = [asyncio.create_task(store.put_response(turn(number))) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await store.response("a", "r1")
        assert (refused.value.kind, refused.value.status) == (ErrorKind.STATE_BUSY, 503)
        assert refused.value.retry_after_s
    await asyncio.gather(*puts)
    assert await store.response("a", "r2") == turn(2)


async def test_closing_does_what_was_asked_and_takes_no_more(tmp_path: Path) -> None:
    settings = StateSettings(tmp_path / "state")
    store = await asyncio.to_thread(StateStore.open, settings)
    with held(store):
        put = asyncio.create_task(store.put_response(turn(1)))
        await asyncio.sleep(0)
    await asyncio.to_thread(store.close)
    await put
    with pytest.raises(ApiError) as refused:
        await store.response("a", "r1")
    assert refused.value.kind is ErrorKind.SHUTDOWN
    await asyncio.to_thread(store.close)
    reopened = await asyncio.to_thread(StateStore.open, settings)
    assert await reopened.response("a", "r1") == turn(1)
    await asyncio.to_thread(reopened.close)


async def test_a_file_that_fails_is_told_as_such(store: StateStore) -> None:
    await store.put_response(turn(1))
    await asyncio.to_thread(store._ledger._database.execute, "DROP TABLE tenants")
    with pytest.raises(ApiError) as failed:
        await store.put_response(turn(2))
    assert failed.value.kind is ErrorKind.STATE_FAILED
    assert "tenants" not in failed.value.message


async def test_an_idle_store_drops_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.responses.store._IDLE_S", 0.01)
    clock = Clock()
    store = await asyncio.to_thread(StateStore.open, StateSettings(ttl_s=DAY_S), clock)
    try:
        await store.put_response(turn(1))
        clock.now += DAY_S
        async with asyncio.timeout(10):
            while await asyncio.to_thread(store._ledger.num_bytes):
                await asyncio.sleep(0.005)
    finally:
        await asyncio.to_thread(store.close)
