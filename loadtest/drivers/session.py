"""aiohttp's client as a load test needs it, and short names for what goes wrong in it.

Runs on the event loop. Blocks: never. It does nothing that it was not asked for: there are no redirects,
cookies, proxies and decompression, neither connections nor time are limited, and idle connections are kept
for as long as the server keeps them.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from loadtest.drivers.target import Target

STALE_S = 0.1
"""A server that closes a connection later than this after a request has had the request."""
NARROW_BYTES = 2048
"""That the kernel holds for a slow reader, which makes twice that of it. Then the server's writes wait."""
_MAX_REFUSAL = 64 * 1024
NOT_SENT = (aiohttp.ClientError, UnicodeError)  # the latter for what can be no host's name


class ConnectError(Exception):
    """There is no connection. The message is a reason for a timeline."""


class StaleConnectionError(Exception):
    """The server was closing a free connection as a request was put on it, and has not seen the request."""


class Sessions:
    """One for clients that read what comes, and one for those that read slowly; each is made when first used.

    ``options`` are further ones of ``aiohttp.ClientSession``. The user's own headers go before ``headers``.
    """

    def __init__(self, target: Target, headers: Mapping[str, str], **options: Any) -> None:
        self._uses_tls = target.address.uses_tls
        own = {name.lower(): value for name, value in target.headers.items()}
        self._headers = {"user-agent": "tideload", **headers, **own}
        self._options = options
        self._made: dict[bool, aiohttp.ClientSession] = {}  # by whether they are narrow

    def get(self, *, is_narrow: bool) -> aiohttp.ClientSession:
        if is_narrow not in self._made:
            self._made[is_narrow] = self._make(is_narrow)
        return self._made[is_narrow]

    async def close(self) -> None:
        """Returns when all connections are closed, whatever was under way on them."""
        for session in self._made.values():
            await session.close()

    def _make(self, is_narrow: bool) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=None,
            ttl_dns_cache=None,  # a name is looked up but once
            ssl=ssl.create_default_context() if self._uses_tls else True,
            socket_factory=_narrow_socket if is_narrow else None,
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            **self._options,
        )


def _narrow_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """The size must be known before it is connected, since that is when the server is told of it."""
    family, kind, protocol, _, _ = address
    narrow = socket.socket(family, kind, protocol)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
    return narrow


async def refusal(response: aiohttp.ClientResponse) -> bytes:
    """The body that says why, as far as it comes."""
    body = b""
    try:
        while len(body) < _MAX_REFUSAL and (more := await response.content.readany()):
            body += more
    except aiohttp.ClientError:
        pass
    return body


def reason_of(error: BaseException) -> str:
    """A short name of what the network did, or the server to it."""
    match error:
        case aiohttp.InvalidURL() | aiohttp.ClientConnectorDNSError() | UnicodeError():
            return "host not found"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "tls failed"
        case aiohttp.ClientConnectorError():
            return _reason_of_system(error.os_error)
        case aiohttp.WSServerHandshakeError():
            return "not a websocket"
        case aiohttp.ClientResponseError():
            return "not http"
        case OSError() if error.errno is not None:
            return _reason_of_system(error)
    return "connection closed"


def _reason_of_system(error: OSError) -> str:
    match error.errno:
        case errno.ECONNREFUSED:
            return "connection refused"
        case errno.ECONNRESET | errno.EPIPE:
            return "connection reset"
        case errno.ETIMEDOUT:
            return "connection timed out"
        case int(number):
            return f"connection failed, errno {number}"
    return "connection failed"
