"""One client's connection: aiohttp's, held to the limits that aiohttp has not got.

Runs on the event loop. Adds to it: a bound on how many there are, a deadline for a request's head and a bound
on its size, JSON for what is no HTTP, and turns for the requests of a long pipeline. Reaches into
aiohttp's ``RequestHandler`` where it offers no other way; ``tests/gateway/test_connection.py`` holds every
such place from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import HttpVersion10, web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web_protocol import _ErrInfo

from gateway.error_answers import (
    BAD_HTTP,
    HEAD_TIMEOUT,
    HEADERS_TOO_LARGE,
    INTERNAL,
    TOO_MANY_CONNECTIONS,
    bare_response,
    detached_response,
    error_response,
    from_parser,
    from_refusal,
)
from gateway.errors import ApiError
from gateway.request_keys import assign_request_id
from gateway.state import Gateway

_TURN_AWAY_S = 1.0


class Connection(web.RequestHandler):
    """aiohttp's protocol of one connection. ``server`` is whose requests it hands on.

    ``on_upgraded_data`` is told how many bytes came, once a WebSocket sets it.
    """

    __slots__ = (
        "_gateway", "_handle", "_head_bytes", "_head_timer", "_is_open", "_limits", "_turned_away",
        "on_upgraded_data",
    )  # fmt: skip

    def __init__(self, server: web.Server, gateway: Gateway, loop: asyncio.AbstractEventLoop) -> None:
        limits = gateway.settings.connection_limits
        super().__init__(
            server,
            loop=loop,
            access_log=cast(Any, None),
            keepalive_timeout=limits.idle_timeout_s,
            lingering_time=gateway.settings.linger_s,
            max_line_size=limits.max_url_bytes,
            max_field_size=limits.max_header_bytes,
            max_headers=limits.max_headers,
            auto_decompress=False,  # it would inflate a body that nobody reads, too, and all at once
        )
        self._gateway = gateway
        self._limits = limits
        self._handle = server.request_handler
        self._request_handler = self._answer
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._turned_away: asyncio.Transport | None = None
        self.on_upgraded_data: Callable[[int], None] | None = None

    # ---- how many ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if not self._gateway.connections.try_open():
            self._head_timer = self._loop.call_later(_TURN_AWAY_S, stream.close)
            self._turned_away = stream
            return
        self._is_open = True
        high = self._limits.write_buffer_bytes
        stream.set_write_buffer_limits(high=high, low=high // 2)  # over TLS it would be 512 KiB
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget_head()
        if self._is_open:
            self._is_open = False
            self._gateway.connections.close()
            super().connection_lost(exc)

    def _turn_away(self) -> None:
        """Once there is a request: closed with bytes unread, a connection is reset and its answer lost."""
        if self._turned_away is not None:
            self._turned_away.write(bare_response(self._gateway.metrics, TOO_MANY_CONNECTIONS))
            self._turned_away.close()
            self._turned_away = None

    # ---- heads ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            self._turn_away()
            return
        if self.on_upgraded_data is not None:
            self.on_upgraded_data(len(data))
        num_before, is_head = self._request_count, self._is_between_requests
        if is_head and data and self._head_timer is None:
            self._expect_head()
        super().data_received(data)
        if self._request_count > num_before:
            self._forget_head()
            self._tell_handler_of_junk()
        elif is_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head_bytes:
                self._refuse(HEADERS_TOO_LARGE)

    @property
    def _is_between_requests(self) -> bool:
        """Whether what arrives belongs to a head that is not complete."""
        return self._request_count == 0 or (self._waiter is not None and not self._waiter.done())

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self._loop.call_later(self._limits.head_timeout_s, self._on_head_timeout)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._head_bytes = 0

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(HEAD_TIMEOUT)
        else:
            self.force_close()

    def _process_keepalive(self) -> None:
        """A head that has begun has its own deadline."""
        if self._head_timer is None:
            super()._process_keepalive()
        else:
            self._keepalive_handle = None

    def _refuse(self, error: ApiError) -> None:
        """Answer and close. Nothing else is under way on this connection."""
        self._forget_head()
        if self.transport is not None:
            self.transport.write(bare_response(self._gateway.metrics, error))
        self.force_close()

    # ---- answers -------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """What surrounds the application: request ids, heads to the byte, refusals before any handler."""
        if self._messages:
            await asyncio.sleep(0)  # so that a pipeline of quick requests does not run ahead of other clients
        assert isinstance(request, web.Request)
        assign_request_id(request)
        if request.version < HttpVersion10:  # it has no status and no length
            return detached_response(self._gateway.metrics, BAD_HTTP)
        if _head_bytes(request) > self._limits.max_head_bytes:
            return detached_response(self._gateway.metrics, HEADERS_TOO_LARGE)
        try:
            return await self._handle(request)
        except web.HTTPException as refusal:
            return error_response(self._gateway.metrics, from_refusal(refusal), refusal)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """For what is no HTTP, in place of aiohttp's plain text, which quotes it."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        error = from_parser(exc, self._limits.max_url_bytes) if isinstance(exc, BadHttpMessage) else INTERNAL
        return detached_response(self._gateway.metrics, error)

    def _tell_handler_of_junk(self) -> None:
        """Who waits for the rest of a body whose framing broke would wait until its time is up."""
        if self._current_request is not None and isinstance(self._messages[-1][0], _ErrInfo):
            self._current_request._cancel(web.RequestPayloadError("broken framing"))


def _head_bytes(request: web.Request) -> int:
    """Names, values and URL; not what separates them."""
    return len(request.raw_path) + sum(len(name) + len(value) for name, value in request.raw_headers)
