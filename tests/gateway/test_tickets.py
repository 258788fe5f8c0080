"""Tickets: good once, for a while, for the key they were got with, and so many."""

from __future__ import annotations

import math

import pytest

from gateway.errors import ApiError, ErrorKind
from gateway.shared_room import Holder
from gateway.tenants import digest_of
from gateway.tickets import TicketOffice

KEY, OTHER = digest_of(b"key"), digest_of(b"other")
ALONE = Holder("a", math.inf)


def test_a_ticket_is_good_once() -> None:
    office = TicketOffice(30)
    first, second = office.issue(KEY, ALONE, 0.0), office.issue(OTHER, ALONE, 0.0)
    assert first != second
    assert office.redeem(first, 1.0) == KEY
    assert office.redeem(first, 1.0) is None
    assert office.redeem(second, 29.9) == OTHER
    assert len(office) == 0


def test_a_ticket_expires() -> None:
    office = TicketOffice(30)
    ticket = office.issue(KEY, ALONE, 0.0)
    assert office.redeem(ticket, 30.0) is None
    assert len(office) == 0


@pytest.mark.parametrize("given", ["", "tgt-", "key", "\udcff", "x" * 10_000])
def test_what_is_no_ticket_is_not_good(given: str) -> None:
    office = TicketOffice(30)
    office.issue(KEY, ALONE, 0.0)
    assert office.redeem(given, 0.0) is None
    assert len(office) == 1


def test_so_many_are_out_and_no_tenant_has_all() -> None:
    office = TicketOffice(30, max_tickets=10)
    greedy, modest = Holder("greedy", 4.0), Holder("modest", 4.0)
    for _ in range(8):
        office.issue(KEY, greedy, 0.0)
    with pytest.raises(ApiError) as caught:
        office.issue(KEY, greedy, 0.0)
    assert caught.value.kind is ErrorKind.BUSY
    office.issue(OTHER, modest, 0.0)
    office.issue(KEY, greedy, 30.0)
    assert len(office) == 1, "what expired has left"


def test_a_ticket_is_kept_nowhere() -> None:
    office = TicketOffice(30)
    ticket = office.issue(KEY, ALONE, 0.0)
    assert ticket not in repr(vars(office))
