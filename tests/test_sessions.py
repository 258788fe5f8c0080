"""What the engine knows of sessions: gaps between turns and names of blocks, as far as there is room."""

from __future__ import annotations

import pytest

from engine.sessions import Sessions
from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.types import BlockHash

RUNNING: dict[str, int] = {}


def names(*numbers: int) -> list[BlockHash]:
    return [BlockHash(number.to_bytes(16, "little")) for number in numbers]


def turn(sessions: Sessions, name: str, start: float, stop: float, tenant: str = "") -> None:
    sessions.begin_turn(name, tenant, 10, start)
    sessions.end_turn(name, stop)


# ---- gaps ------------------------------------------------------------------------------------------


def test_a_gap_is_from_the_end_of_a_turn_to_the_next_ones_coming() -> None:
    sessions = Sessions()
    turn(sessions, "s", 0.0, 5.0)
    assert sessions.expected_gap_s("s", "") is None
    turn(sessions, "s", 25.0, 40.0)
    assert sessions.expected_gap_s("s", "") == 20.0
    turn(sessions, "s", 140.0, 150.0)
    assert sessions.expected_gap_s("s", "") == pytest.approx(0.7 * 20 + 0.3 * 100)


def test_turns_that_run_side_by_side_leave_no_gap_between_them() -> None:
    sessions = Sessions()
    sessions.begin_turn("s", "", 10, 0.0)
    sessions.begin_turn("s", "", 10, 3.0)
    sessions.end_turn("s", 4.0)
    sessions.begin_turn("s", "", 10, 6.0)
    sessions.end_turn("s", 7.0)
    sessions.end_turn("s", 8.0)
    assert sessions.expected_gap_s("s", "") is None
    sessions.begin_turn("s", "", 10, 9.5)
    assert sessions.expected_gap_s("s", "") == 1.5


def test_before_its_own_return_a_session_is_taken_to_be_like_others_of_its_tenant_or_of_all() -> None:
    sessions = Sessions()
    turn(sessions, "s", 0.0, 1.0, "a")
    turn(sessions, "s", 31.0, 32.0, "a")
    turn(sessions, "t", 0.0, 1.0, "b")
    turn(sessions, "t", 101.0, 102.0, "b")
    assert sessions.expected_gap_s("new", "a") == 30.0
    assert sessions.expected_gap_s("new", "b") == 100.0
    assert sessions.expected_gap_s("new", "c") == pytest.approx(0.7 * 30 + 0.3 * 100)


# ---- names and bounds ------------------------------------------------------------------------------


def test_the_names_of_all_branches_in_the_order_of_their_coming() -> None:
    sessions = Sessions()
    sessions.note_blocks("s", names(1, 2, 3), 50)
    sessions.note_blocks("s", names(1, 4), 34)
    sessions.note_blocks("s", names(1, 2, 3, 5), 66)
    found = sessions.find("s")
    assert found is not None
    assert list(found.names) == names(1, 2, 3, 4, 5)
    assert found.num_tokens == 66
    assert sessions.problems(RUNNING) == []


def test_what_was_used_longest_ago_makes_room() -> None:
    sessions = Sessions(max_sessions=3, max_names=100)
    for name in ("a", "b", "c"):
        turn(sessions, name, 0.0, 1.0)
    turn(sessions, "a", 2.0, 3.0)
    turn(sessions, "d", 4.0, 5.0)
    assert [sessions.find(name) is not None for name in "abcd"] == [True, False, True, True]
    assert sessions.problems(RUNNING) == []


def test_so_many_names_in_each_and_over_all() -> None:
    sessions = Sessions(max_names=10, max_names_each=6)
    sessions.note_blocks("a", names(*range(8)), 8)
    found = sessions.find("a")
    assert found is not None
    assert list(found.names) == names(*range(6))
    sessions.note_blocks("b", names(*range(5)), 5)
    assert sessions.find("a") is None
    assert sessions.find("b") is not None
    assert sessions.problems(RUNNING) == []


def test_gaps_of_tenants_are_bounded() -> None:
    sessions = Sessions(max_tenants=2)
    for number, tenant in enumerate("abc"):
        turn(sessions, tenant, 0.0, 1.0, tenant)
        turn(sessions, tenant, 11.0 + number, 20.0, tenant)
    assert sessions.expected_gap_s("new", "c") == 12.0
    assert sessions.expected_gap_s("new", "a") == sessions.expected_gap_s("new", "nobody")


def test_a_session_that_was_forgotten_while_it_ran_ends_without_harm() -> None:
    sessions = Sessions(max_sessions=1)
    sessions.begin_turn("a", "", 10, 0.0)
    sessions.begin_turn("b", "", 10, 0.0)
    sessions.end_turn("a", 1.0)
    assert len(sessions) == 1
    assert sessions.problems({"b": 1}) == []


def test_the_recount_notices_damage() -> None:
    sessions = Sessions()
    sessions.begin_turn("a", "", 10, 0.0)
    assert sessions.problems({"a": 1}) == []
    assert sessions.problems({}) != []
    sessions.end_turn("a", 1.0)
    sessions._num_names += 1
    assert sessions.problems({}) != []


# ---- in an engine ----------------------------------------------------------------------------------


def test_cells_follow_the_blocks_of_a_session_down_and_back() -> None:
    engine = SmallEngine(
        num_blocks=8, host_blocks=8, disk_blocks=80, max_num_batched_tokens=8, write="through"
    )
    assert engine.cells("s") == ""
    first = list(range(100, 112))
    engine.link.hold()
    engine.add("r1", first, max_tokens=5, session="s")
    engine.step()
    assert engine.cells("s") == "DD"
    for _ in range(8):
        engine.step()
    assert engine.cells("s") == ">>>>"
    engine.link.release()
    engine.run()
    assert engine.cells("s") == "dddd"
    seen = ""
    for number in range(8):
        engine.add(f"other{number}", [number] * 21, max_tokens=1)
        engine.run()
        seen += engine.cells("s")
    assert "h" in seen
    assert engine.cells("s") == "kkkk"
    engine.link.hold()
    engine.add("r2", [*first, *engine.tokens["r1"], 7], max_tokens=1, session="s")
    for _ in range(8):
        engine.step()
    assert "<" in engine.cells("s")
    engine.link.release()
    engine.run()
    assert engine.cells("s").startswith("dddd")
    assert engine.tokens["r2"] == expected_tokens([*first, *engine.tokens["r1"], 7], 1)


def test_a_branch_adds_its_blocks_and_shares_those_before() -> None:
    engine = SmallEngine(num_blocks=32)
    trunk = list(range(8))
    for name, own in (("one", [50] * 4), ("two", [60] * 4)):
        engine.add(name, [*trunk, *own], max_tokens=1, session="s")
        engine.run()
    assert engine.cells("s") == "dddd"  # two of the trunk, and one of each branch
    (report,) = engine.core.describe_sessions(0, ["s"]).sessions
    assert report.num_tokens == 13


def test_what_a_turn_that_its_client_left_has_computed_counts() -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("r", list(range(9)), max_tokens=20, session="s")
    engine.step()
    engine.core.abort("r")
    engine.step()
    assert engine.cells("s") == "dd"


def test_the_expected_return_is_measured_unless_it_is_given() -> None:
    engine = SmallEngine(num_blocks=64, eviction="session_aware")

    def expected() -> set[float | None]:
        pool = engine.tiers.device
        uses = [pool.use_of(block) for block in pool.evictable_blocks()]
        return {use.outlook.expected_return_at for use in uses if use is not None}

    engine.add("r1", list(range(8)), max_tokens=1, session="s")
    engine.run()
    assert expected() == {None}
    ended = engine._num_steps
    engine._num_steps += 50
    engine.add("r2", list(range(8)), max_tokens=1, session="s")
    gap = engine._num_steps - ended
    engine.run()
    assert expected() == {engine._num_steps + gap}
    engine.add("r3", list(range(8)), max_tokens=1, session="s", expected_return_s=7.0)
    engine.run()
    assert expected() == {engine._num_steps + 7.0}


def test_making_a_session_ready_is_not_its_return() -> None:
    engine = SmallEngine(num_blocks=64)
    engine.add("r1", list(range(8)), max_tokens=1, session="s")
    engine.run()
    ended = engine._num_steps
    engine._num_steps += 20
    engine.add("ready", list(range(12)), max_tokens=0, session="s")
    engine.run()
    assert engine.scheduler.sessions.expected_gap_s("s", "") is None
    assert engine.cells("s") == "ddd"
    engine._num_steps += 20
    engine.add("r2", list(range(12)), max_tokens=1, session="s")
    assert engine.scheduler.sessions.expected_gap_s("s", "") == engine._num_steps - ended


def test_the_hint_of_a_session_goes_down_the_tiers_with_its_blocks() -> None:
    engine = SmallEngine(num_blocks=8, host_blocks=16, write="through", eviction="session_aware")
    engine.add("r", list(range(8)), max_tokens=1, expected_return_s=500.0)
    engine.run()
    host = engine.tiers.host
    assert host is not None
    uses = [host.use_of(block) for block in host.evictable_blocks()]
    assert {use.outlook.expected_return_at for use in uses if use is not None} == {501.0}
