"""What one connection may take, and how many there may be.

Pure. ``gateway/connection.py`` holds connections to it.
"""

from __future__ import annotations

from dataclasses import dataclass


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
