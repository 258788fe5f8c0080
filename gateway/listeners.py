"""Binds the sockets that a server will listen on, before anything slow is done.

Called before the event loop runs; blocks for a name look-up. A bound socket refuses connections until
it listens, so a port that is taken is found out at once and clients are let in only when all is ready.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from engine.config import ConfigError


@contextlib.contextmanager
def bound_listeners(host: str, port: int, send_buffer_bytes: int) -> Iterator[list[socket.socket]]:
    """Sockets on every address of ``host``, closed at the end. Port 0 takes a free one on the first.

    ``send_buffer_bytes`` is what the kernel holds for each client that does not read. Raises
    ConfigError if an address cannot be used.
    """
    with contextlib.ExitStack() as scope:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            addresses = list(dict.fromkeys(found)) if port else found[:1]
            listeners = [
                _bind(scope, family, address, send_buffer_bytes) for family, _, _, _, address in addresses
            ]
        except OSError as error:
            raise ConfigError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error
        yield listeners


def _bind(
    scope: contextlib.ExitStack, family: int, address: tuple[Any, ...], send_buffer_bytes: int
) -> socket.socket:
    listener = scope.enter_context(contextlib.closing(socket.socket(family, socket.SOCK_STREAM)))
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)
    return listener


def base_url(listeners: Sequence[socket.socket], scheme: str = "http") -> str:
    """Of the first listener."""
    host, port = listeners[0].getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
