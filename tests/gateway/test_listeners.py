"""Addresses: taken, unknown, several at once."""

from __future__ import annotations

import errno
import socket

import pytest

from engine.config import ConfigError
from gateway.listeners import base_url, bound_listeners


def test_a_free_port() -> None:
    with bound_listeners("127.0.0.1", 0, 65536) as listeners:
        (listener,) = listeners
        host, port = listener.getsockname()
        assert base_url(listeners) == f"http://{host}:{port}"


def test_a_bound_socket_refuses_until_it_listens() -> None:
    with bound_listeners("127.0.0.1", 0, 65536) as listeners, socket.socket() as client:
        assert client.connect_ex(listeners[0].getsockname()) == errno.ECONNREFUSED


def test_a_port_in_use_is_a_setting_to_put_right() -> None:
    with bound_listeners("127.0.0.1", 0, 65536) as listeners:
        listeners[0].listen()
        port = listeners[0].getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)), bound_listeners("127.0.0.1", port, 65536):
            pass


def test_a_host_that_does_not_exist_is_a_setting_to_put_right() -> None:
    with pytest.raises(ConfigError, match=r"256\.1\.1\.1"), bound_listeners("256.1.1.1", 0, 65536):
        pass


def test_sockets_are_closed_at_the_end() -> None:
    with bound_listeners("127.0.0.1", 0, 65536) as listeners:
        pass
    assert listeners[0].fileno() == -1
