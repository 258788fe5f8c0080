"""One connection to the server, which carries one exchange at a time: a request and its answer.

Runs on the event loop. Blocks: never. What comes is stamped before anything else is done with it, and read
where it arrives: no task wakes up for it, so that a token costs microseconds and one that waits for its turn
does not look late.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar, cast

from loadtest.clock import Clock
from loadtest.drivers.answer import Answer
from loadtest.drivers.target import Address

_STALE_S = 0.1
"""A server that closes a connection later than this after a request has had the request."""
_NARROW_BYTES = 2048
"""That the kernel holds for a slow reader, which makes twice that of it. Then the server's writes wait."""


class Owner(Protocol):
    """Who keeps connections."""

    def take_back(self, connection: Connection) -> None:
        """The next exchange may begin, which is not before the answer has ended."""
        ...

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        ...


class StaleConnectionError(Exception):
    """The server was closing a free connection as a request was put on it, and has not seen the request."""


class ConnectError(Exception):
    """There is no connection. The message is a reason for a timeline."""


class Connection(asyncio.Protocol):
    """``is_narrow``: for a slow reader.

    ``_answer`` and ``_over`` are those of the exchange under way, and None while there is none.
    ``_may_be_stale``: that exchange is not the first one here, and nothing of its answer has come.
    """

    def __init__(self, clock: Clock, owner: Owner, *, is_narrow: bool) -> None:
        self.is_narrow = is_narrow
        self._clock = clock
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._over: asyncio.Future[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._was_used = False
        self._may_be_stale = False
        self._written_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def carry(self, request: bytes, answer: Answer) -> None:
        """Send a request; returns when its answer is over. If it is cancelled the connection is cut.

        Raises StaleConnectionError.
        """
        assert self._transport is not None and self._answer is None
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._may_be_stale, self._was_used = self._was_used, True
        self._answer, self._over = answer, over
        self._begin()
        self._written_at = self._clock.now()
        self._transport.write(request)
        try:
            await over
        except asyncio.CancelledError:
            if self._over is over:
                self._answer = self._over = None
                self.cut()
            raise

    def cut(self) -> None:
        """Close it at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    # ---- what each protocol does ----------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """An exchange is about to begin."""

    @abstractmethod
    def _take(self, data: bytes, at: float) -> None:
        """Read what came."""

    @abstractmethod
    def _take_end(self, at: float) -> None:
        """The server sends no more."""

    # ---- what they share ------------------------------------------------------------------------

    def _deliver(self, events: Iterable[bytes], at: float) -> None:
        """Hand on events; a slow reader then rests, and what comes waits with the kernel and the server."""
        answer = self._answer
        if answer is None:
            return
        num_pieces = 0
        for event in events:
            num_pieces += answer.take(event, at)
        if num_pieces and answer.pause_s and not answer.is_over:
            self._rest(num_pieces * answer.pause_s)

    def _fail(self, reason: str, at: float) -> None:
        """End the exchange, and the connection with it."""
        if self._answer is not None:
            self._answer.fail(reason, at)
        self._finish()
        self.cut()

    def _lose(self, reason: str, at: float) -> None:
        """The server has closed the connection: that ends the exchange too, unless it had not begun there."""
        over = self._over
        if over is not None and not over.done() and self._may_be_stale and at <= self._written_at + _STALE_S:
            over.set_exception(StaleConnectionError())
            self._answer = self._over = None
        self._fail(reason, at)

    def _finish(self) -> None:
        over = self._over
        self._answer = self._over = None
        if over is not None and not over.done():
            over.set_result(None)

    def _rest(self, for_s: float) -> None:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        if self._resting is not None:  # something was on its way already
            start_s = self._resting.when()
            self._resting.cancel()
        self._transport.pause_reading()
        self._resting = loop.call_at(start_s + for_s, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()

    # ---- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._take(data, self._clock.now())

    def eof_received(self) -> bool:
        at = self._clock.now()
        if self._may_be_stale:
            self._lose("connection closed", at)
        else:
            self._take_end(at)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        at = self._clock.now()
        self._owner.forget(self)
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._over is not None:
            self._lose("connection closed" if error is None else loss_reason(error), at)


def loss_reason(error: Exception) -> str:
    """A short name of what the network did."""
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset"
        case TimeoutError():
            return "connection timed out"
        case ssl.SSLError():
            return "tls failed"
        case OSError(errno=number) if number is not None:
            return f"connection failed, errno {number}"
    return "connection failed"


Dialled = TypeVar("Dialled", bound=Connection)


class Dialer:
    """Makes connections to one address, whose name is looked up but once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.uses_tls else None
        self._found: list[tuple[int, str]] = []  # family, numeric host

    async def dial(self, make: Callable[[], Dialled], *, is_narrow: bool) -> Dialled:
        """Raises ConnectError."""
        if not self._found:
            self._found = await self._look_up()
        error: OSError | None = None
        for place in list(self._found):
            try:
                return await self._connect(make, *place, is_narrow)
            except OSError as this:
                error = this
                self._found = [*self._found[1:], self._found[0]]  # the next one first, from now on
        raise ConnectError("host not found" if error is None else loss_reason(error))

    async def _look_up(self) -> list[tuple[int, str]]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._address.host, self._address.port, type=socket.SOCK_STREAM
            )
        except (socket.gaierror, UnicodeError):
            raise ConnectError("host not found") from None
        return [(family, str(place[0])) for family, _, _, _, place in found]

    async def _connect(self, make: Callable[[], Dialled], family: int, host: str, is_narrow: bool) -> Dialled:
        loop, port = asyncio.get_running_loop(), self._address.port
        name = self._address.host if self._tls else None
        if is_narrow:
            narrow = await _narrow_socket(family, host, port)
            _, protocol = await loop.create_connection(make, sock=narrow, ssl=self._tls, server_hostname=name)
        else:
            _, protocol = await loop.create_connection(
                make, host, port, family=family, ssl=self._tls, server_hostname=name
            )
        return protocol


async def _narrow_socket(family: int, host: str, port: int) -> socket.socket:
    """Connected; the size must be known before, since that is when the server is told of it."""
    narrow = socket.socket(family, socket.SOCK_STREAM)
    try:
        narrow.setblocking(False)
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)
        await asyncio.get_running_loop().sock_connect(narrow, (host, port))
    except BaseException:
        narrow.close()
        raise
    return narrow
