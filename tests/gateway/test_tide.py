"""What a tenant is told by the tide map: its sessions in order and in bounds, rates, and no more of ids."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.stats import EngineStats, SessionKv, TierStats, TransferStats
from gateway.tide import (
    MAX_SESSIONS,
    MAX_TENANTS,
    HouseRates,
    Rate,
    SessionRegister,
    in_runs,
    shown_sessions,
)


def names(register: SessionRegister, tenant: str = "a") -> list[str]:
    return [use.name for use in register.recent(tenant)]


def test_the_session_that_was_used_last_comes_first_under_its_own_number() -> None:
    register = SessionRegister()
    for session, response in (("one", "resp_1"), ("two", "resp_2"), ("one", "resp_3")):
        register.note("a", session, response)
    assert [(use.number, use.name, use.response_id) for use in register.recent("a")] == [
        (1, "one", "resp_3"),
        (2, "two", "resp_2"),
    ]


def test_tenants_know_nothing_of_each_other_and_count_for_themselves() -> None:
    register = SessionRegister()
    register.note("a", "one", "resp_1")
    register.note("b", "two", "resp_2")
    assert (names(register, "a"), names(register, "b"), names(register, "c")) == (["one"], ["two"], [])
    assert [use.number for use in register.recent("b")] == [1]
    register.forget("b", "resp_1")
    assert names(register, "a") == ["one"]


def test_a_session_goes_with_its_last_response() -> None:
    register = SessionRegister()
    register.note("a", "one", "resp_1")
    register.note("a", "one", "resp_2")
    register.forget("a", "resp_1")
    assert names(register) == ["one"]
    register.forget("a", "resp_2")
    assert names(register) == []


def test_sessions_and_tenants_are_bounded_and_the_oldest_go() -> None:
    register = SessionRegister()
    for number in range(MAX_SESSIONS + 1):
        register.note("a", f"s{number}", "resp")
    assert names(register) == [f"s{number}" for number in range(MAX_SESSIONS, 0, -1)]
    for number in range(MAX_TENANTS):
        register.note(f"t{number}", "s", "resp")
    assert names(register) == []
    assert names(register, "t0") == ["s"]


@pytest.mark.parametrize(("cells", "runs"), [("", ""), ("DDDhh", "3D2h"), ("d", "1d"), ("-->k", "2-1>1k")])
def test_cells_are_sent_in_runs(cells: str, runs: str) -> None:
    assert in_runs(cells) == runs


def test_of_an_id_only_the_beginning_is_told() -> None:
    """Whoever sees a row on a server without keys must not be able to fetch what was said."""
    register = SessionRegister()
    response_id = "resp_" + "0123456789abcdef" * 2
    register.note("", "one", response_id)
    register.note("", "unknown", "resp_x")
    [session] = shown_sessions(register.recent(""), {"one": SessionKv("one", 40, "DD")})
    assert (session.id, session.num_tokens, session.cells) == (1, 40, "2D")
    assert response_id.startswith(session.response)
    assert len(response_id) - len(session.response) >= 20  # hex digits to guess


def test_a_rate_is_over_the_last_two_seconds() -> None:
    rate = Rate()
    assert rate.add(10.0, 100) == 0.0
    assert rate.add(11.0, 150) == 50.0
    assert rate.add(12.0, 150) == 25.0
    assert [rate.add(now, 150) for now in (13.0, 14.0)] == [0.0, 0.0]


def test_a_total_that_starts_anew_is_no_negative_rate() -> None:
    rate = Rate()
    rate.add(10.0, 1_000_000)
    assert rate.add(11.0, 3) == 0.0
    assert rate.add(12.0, 13) == 10.0


def stats(moved: Mapping[str, int]) -> EngineStats:
    return EngineStats(
        num_running=2,
        num_waiting=1,
        tiers={"device": TierStats(1, 2, 3, 4, "lru", 0, 55)},
        transfers={
            kind: TransferStats(0, 0, 0, num_bytes, 0.0, 0.0, 0.0, ()) for kind, num_bytes in moved.items()
        },
    )


def test_bytes_up_are_those_towards_the_device() -> None:
    rates = HouseRates()
    rates.figures(stats({"swap_in": 0, "promote": 0, "swap_out": 0, "demote": 0}), 10.0)
    figures = rates.figures(stats({"swap_in": 100, "promote": 20, "swap_out": 3000, "demote": 400}), 11.0)
    assert (figures.bytes_up_per_s, figures.bytes_down_per_s) == (120, 3400)
    assert (figures.running, figures.waiting, figures.hit_tokens) == (2, 1, {"device": 55})
    device = figures.tiers["device"]
    assert (device.free, device.cached, device.in_use, device.copying) == (1, 2, 3, 4)
