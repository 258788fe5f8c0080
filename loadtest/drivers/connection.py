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


class Owner(Protocol):
    """Who keeps connections."""

    def take_back(self, connection: Connection) -> None:
        """The next exchange may begin, which is not before the answer has ended."""
        ...

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        ...


class StaleConnectionError(Exception):
    """The server had closed a connection that was free when a request was put on it; nothing came back."""


class ConnectError(Exception):
    """There is no connection. The message is a reason for a timeline."""


class Connection(asyncio.Protocol):
    """``_answer`` and ``_over`` are those of the exchange under way, and None while there is none."""

    def __init__(self, clock: Clock, owner: Owner) -> None:
        self._clock = clock
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._over: asyncio.Future[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._was_used = False
        self._may_be_stale = False

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
        at = self._clock.now()
        self._may_be_stale = False
        self._take(data, at)

    def eof_received(self) -> bool:
        if not self._may_be_stale:
            self._take_end(self._clock.now())
        return False

    def connection_lost(self, error: Exception | None) -> None:
        at = self._clock.now()
        self._owner.forget(self)
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._over is None:
            return
        if self._may_be_stale:
            self._over.set_exception(StaleConnectionError())
            self._answer = self._over = None
        else:
            self._fail("connection closed" if error is None else loss_reason(error), at)


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

    async def dial(self, make: Callable[[], Dialled]) -> Dialled:
        """Raises ConnectError."""
        if not self._found:
            self._found = await self._look_up()
        error: OSError | None = None
        for place in list(self._found):
            try:
                return await self._connect(make, *place)
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

    async def _connect(self, make: Callable[[], Dialled], family: int, host: str) -> Dialled:
        name = self._address.host if self._tls else None
        _, protocol = await asyncio.get_running_loop().create_connection(
            make, host, self._address.port, family=family, ssl=self._tls, server_hostname=name
        )
        return protocol
