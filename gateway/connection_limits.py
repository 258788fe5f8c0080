"""What one connection may take, be it HTTP or a WebSocket, and how many there may be.

Pure. ``gateway/connection.py`` and ``gateway/websocket.py`` hold connections to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.protocol.ws_turns import WsLimits

NEVER_BLOCKS_BYTES = 32 * 2**10
"""Below this in a transport's buffer a write never waits (aiohttp and uvloop both wait at 64 KiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """A request's head is its request line and its headers.

    ``head_timeout_s`` counts from the connection's first moment, later from the head's first byte; between
    two requests a connection may be idle for ``idle_timeout_s``. ``write_buffer_bytes`` is what this
    process holds for a client that does not read.
    """

    max_connections: int = 8192
    head_timeout_s: float = 30.0
    idle_timeout_s: float = 90.0
    max_url_bytes: int = 8 * 2**10
    max_header_bytes: int = 16 * 2**10
    max_headers: int = 100
    max_head_bytes: int = 32 * 2**10
    write_buffer_bytes: int = 64 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketLimits:
    """A client that has sent nothing for ``ping_s`` is pinged; one silent for half as long again is gone.

    A WebSocket is closed when nothing has been asked of it for ``idle_timeout_s``, and takes no more turns
    after ``max_age_s``. It remembers ``num_recent`` turns that are not stored, up to ``recent_bytes`` of it.
    ``deflates``: messages are compressed if the client offers that, which costs every connection its zlib
    states.
    """

    ping_s: float = 20.0
    idle_timeout_s: float = 3600.0
    max_age_s: float = 24 * 3600.0
    ticket_ttl_s: float = 30.0
    num_recent: int = 16
    recent_bytes: int = 2 * 2**20
    deflates: bool = False
    session: WsLimits = field(default_factory=WsLimits)


class OpenConnections:
    """Counts connections up to a bound, and those that it turned away."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self.num_refused = 0

    def try_open(self) -> bool:
        """Whether there is room for one more, which is then taken until ``close``."""
        if self.count >= self.limit:
            self.num_refused += 1
            return False
        self.count += 1
        return True

    def close(self) -> None:
        assert self.count > 0
        self.count -= 1
