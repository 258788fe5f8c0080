"""Counting connections up to a bound."""

from __future__ import annotations

import pytest

from gateway.connection_limits import ConnectionLimits, OpenConnections


def test_there_are_never_more_than_the_bound() -> None:
    connections = OpenConnections(2)
    assert [connections.try_open() for _ in range(4)] == [True, True, False, False]
    assert (connections.count, connections.num_refused) == (2, 2)
    connections.close()
    assert connections.try_open()
    assert not connections.try_open()


@pytest.mark.case("E11")
def test_idle_connections_outlive_the_pools_of_common_clients() -> None:
    assert ConnectionLimits().idle_timeout_s >= 75
