"""One WebSocket of /v1/responses: carries out what ``WsSession`` decides.

Runs on the event loop: one task reads, and one for each turn that runs follows its response. What is to be
sent leaves in the order in which it was decided, and whoever has something to send waits until it has left;
events of a response leave at once while the socket is clear.
So a client that does not read costs what the transport buffers (64 KiB, beside the kernel's) and an event for
each of its lanes; its responses are held up by that, and after a minute it is closed. However a connection
ends, it ends alone: stored responses go on without it, as their own rules say.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, cast

from aiohttp import WSMsgType, web

from gateway.authentication import unauthorized, visitor_with
from gateway.connection import Connection
from gateway.connection_limits import NEVER_BLOCKS_BYTES
from gateway.errors import TABLE, ApiError, ErrorKind, clip, from_failure
from gateway.handlers import known_visitor
from gateway.mailbox import TOO_SLOW
from gateway.openai.responses.events import Event
from gateway.protocol.ws_events import ClientEvent, EventError, Resume, read_event
from gateway.protocol.ws_frames import text_frame
from gateway.protocol.ws_session import WsSession
from gateway.protocol.ws_told import error_event
from gateway.protocol.ws_turns import (
    Action,
    Begin,
    CancelResponse,
    Close,
    Forget,
    Interrupt,
    Say,
    Turn,
    TurnState,
)
from gateway.request_keys import GATEWAY, key_of, request_id_of
from gateway.responses.run import Interruption, ResponseRun
from gateway.responses.service import Origin, ResponseService
from gateway.responses.turns import RecentTurns
from gateway.tenant_register import Visitor

log = logging.getLogger("tidegate.gateway")

_READ_HERE_BYTES = 64 * 2**10  # longer messages are read on the offload threads
_MAX_REASON_CHARS = 100  # a close frame holds 123 bytes
_FRAME_BYTES = 6  # around what a client's ping has in it


class ResponsesSocket:
    """One connection. Its tasks end with ``run``. Implements OpenSocket."""

    __slots__ = (
        "_active_at", "_ending", "_expires_at", "_gateway", "_held_bytes", "_holder", "_incoming_bytes",
        "_is_over", "_key", "_loop", "_origin", "_outbox", "_recent", "_remembered_bytes", "_request",
        "_runs", "_sending", "_service", "_session", "_tasks", "_ws",
    )  # fmt: skip

    def __init__(self, request: web.Request, ws: web.WebSocketResponse, service: ResponseService) -> None:
        self._request = request
        self._ws = ws
        self._service = service
        self._gateway = request.app[GATEWAY]
        self._key = key_of(request)
        self._holder = known_visitor(request).holder
        limits = self._gateway.settings.websocket_limits
        self._session = WsSession(limits.session)
        self._recent = RecentTurns(limits.num_recent, limits.recent_bytes)
        self._origin = Origin(recent=self._recent, may_wait=True)
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()
        self._expires_at = self._active_at + limits.max_age_s
        self._runs: dict[Turn, ResponseRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._outbox: deque[bytes] = deque()
        self._sending = asyncio.Lock()
        self._held_bytes = 0
        self._remembered_bytes = 0
        self._incoming_bytes = 0
        self._is_over = False

    async def run(self, first: Resume | None) -> None:
        """Until the connection is over. Leaves nothing behind."""
        connection = cast(Connection, self._request.protocol)
        connection.on_upgraded_data = self._count_incoming
        try:
            await self._guarded(self._listen, first)
        finally:
            connection.on_upgraded_data = None
            await self._release()

    async def _listen(self, first: Resume | None) -> None:
        if first is not None:
            await self._carry_out(self._session.take(first))
        while (message := await self._next_message()) is not None:
            await self._carry_out(await self._read(message))

    def leave(self, error: ApiError) -> None:
        self._start(self._carry_out, self._session.leave(error))

    async def _release(self) -> None:
        """What need not be waited for first: this task may be cancelled while it waits."""
        self._hold(0)
        self._is_over = True
        self._weigh_memory()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ending is not None:
            await asyncio.gather(self._ending, return_exceptions=True)

    # ---- reading -------------------------------------------------------------------------------

    async def _next_message(self) -> bytes | None:
        """None when no more come."""
        while True:
            try:
                message = await self._ws.receive(self._patience_s())
            except TimeoutError:
                continue
            if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
                self._active_at = self._loop.time()
                data = message.data
                return data.encode() if isinstance(data, str) else bytes(data)
            if message.type not in (WSMsgType.PING, WSMsgType.PONG):
                return None
            self._incoming_bytes = max(0, self._incoming_bytes - len(message.data) - _FRAME_BYTES)
            if message.type is WSMsgType.PING:
                await self._ws.pong(message.data)

    def _patience_s(self) -> float:
        """How long to wait for a message at most; what is due by now is seen to."""
        now, limits = self._loop.time(), self._gateway.settings.websocket_limits
        if not self._session.is_idle:
            self._active_at = now
        if now >= self._expires_at:
            self._expires_at = float("inf")
            message = f"The connection is {limits.max_age_s:g} s old; open another."
            self.leave(ApiError(ErrorKind.CONNECTION_AGE, message))
        idle_until = self._active_at + limits.idle_timeout_s
        if now >= idle_until:
            idle_until = now + limits.idle_timeout_s
            self.leave(ApiError(ErrorKind.IDLE, "Nothing was asked of this connection for too long."))
        return max(0.001, min(self._expires_at, idle_until) - now)

    async def _read(self, message: bytes) -> list[Action]:
        try:
            event = await self._event(message)
        except EventError as error:
            actions = self._session.misread(error)
        else:
            actions = self._session.take(event)
        self._incoming_bytes = 0
        self._hold(self._session.held_bytes)
        return actions

    async def _event(self, message: bytes) -> ClientEvent:
        if len(message) <= _READ_HERE_BYTES:
            return read_event(message)
        try:
            return await self._gateway.try_offload(self._holder, read_event, message)
        except ApiError as error:
            raise EventError(error) from None

    # ---- what it holds -------------------------------------------------------------------------

    def _count_incoming(self, num_bytes: int) -> None:
        """Of a message that is not whole; where the house has no room for it the connection ends."""
        self._incoming_bytes += num_bytes
        if not self._hold(self._session.held_bytes + self._incoming_bytes):
            self._end(ApiError(ErrorKind.BUSY, "Too many large bodies arrive at once."))

    def _hold(self, num_bytes: int) -> bool:
        """Take so much of the house's room for bodies in all. False, and nothing changes, if it has less."""
        if self._is_over:
            return True
        room, more = self._gateway.bodies.room, num_bytes - self._held_bytes
        if more > 0 and room.lacking(self._holder, more):
            return False
        if more > 0:
            room.take(self._holder, more)
        else:
            room.give_back(self._holder, -more)
        self._held_bytes = num_bytes
        return True

    def _weigh_memory(self) -> None:
        """Remember no more than the house has room for."""
        room = self._gateway.sockets.memory
        room.give_back(self._holder, self._remembered_bytes)
        while room.lacking(self._holder, self._recent.num_bytes):
            self._recent.forget_oldest()
        self._remembered_bytes = 0 if self._is_over else self._recent.num_bytes
        room.take(self._holder, self._remembered_bytes)

    # ---- doing ---------------------------------------------------------------------------------

    async def _carry_out(self, actions: Iterable[Action]) -> None:
        """Raises ConnectionResetError once nothing can be sent any more."""
        for action in actions:
            if isinstance(action, Say):
                self._outbox.append(action.data)
            elif isinstance(action, Begin):
                await self._flush()  # what ended is told before what follows begins
                self._start(self._take_turn, action)
            elif isinstance(action, Interrupt):
                self._runs[action.turn].interrupt(Interruption.STEERED)
            elif isinstance(action, CancelResponse):
                await self._cancel(action.response_id)  # so that nobody asks faster than the store answers
            elif isinstance(action, Forget):
                self._recent.forget(action.response_id)
                self._weigh_memory()
            else:
                await self._flush()
                self._close(action)
        await self._flush()

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        task = asyncio.create_task(self._guarded(work, *args), name="tidegate-websocket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        try:
            await work(*args)
        except ConnectionResetError:
            pass  # the client went
        except Exception:
            log.exception("WebSocket of request %s failed", request_id_of(self._request))
            self._end(ApiError(ErrorKind.INTERNAL, "The server failed to go on."))

    async def _take_turn(self, begin: Begin) -> None:
        """A turn from its beginning to its last event."""
        turn = begin.turn
        try:
            run = await self._found(turn.asked) if begin.create is None else await self._made(begin)
            await self._tell(turn, run)
        except ApiError as error:
            self._gateway.metrics.error_answers.labels(error.kind.value).inc()
            actions = self._session.refused(turn, error)
            self._hold(self._session.held_bytes + self._incoming_bytes)
            await self._carry_out(actions)
        finally:
            self._runs.pop(turn, None)
            self._active_at = self._loop.time()
            self._weigh_memory()

    async def _made(self, begin: Begin) -> ResponseRun:
        assert begin.create is not None
        return await self._service.create(self._visitor(), begin.create.body(), self._origin)

    async def _found(self, asked: object) -> ResponseRun:
        assert isinstance(asked, Resume)
        return await self._service.events_of(self._visitor(), asked.response_id)

    async def _tell(self, turn: Turn, run: ResponseRun) -> None:
        asked = turn.asked
        starting_after = asked.starting_after if isinstance(asked, Resume) else -1
        follower = run.follow(starting_after, in_place=partial(self._tell_now, turn))
        self._session.started(turn, run.id)
        self._hold(self._session.held_bytes + self._incoming_bytes)
        self._runs[turn] = run
        try:
            async for events in follower:
                for event in events:
                    await self._carry_out(self._session.tell(turn, (event,)))
            if turn.state is TurnState.RUNNING:
                await self._carry_out(self._session.told_all(turn))
        finally:
            await follower.aclose()

    def _tell_now(self, turn: Turn, events: Sequence[Event]) -> bool:
        """The same at once, if nothing waits to be sent and no message would have to; False if not."""
        transport = self._request.transport
        if self._ws.closed or (transport is not None and transport.is_closing()):
            raise ConnectionResetError("the connection is over")
        is_busy = self._outbox or self._sending.locked() or self._ending is not None or self._ws.compress
        if is_busy or transport is None or transport.get_write_buffer_size() > NEVER_BLOCKS_BYTES:
            return False
        for action in self._session.tell(turn, events):
            assert isinstance(action, Say), "only the last event has other consequences"
            transport.write(text_frame(action.data))
        return True

    async def _cancel(self, response_id: str) -> None:
        try:
            visitor = self._visitor()
            run = self._service.running(visitor, response_id)
            if run is not None:
                run.interrupt(Interruption.CANCELLED)
            else:
                await self._service.retrieve(visitor, response_id)  # what has ended stays as it is
        except ApiError as error:
            self._outbox.append(error_event(error, None))

    def _visitor(self) -> Visitor:
        """Whose key it is now. Raises ApiError if that is nobody's any more, and the connection will end."""
        visitor = visitor_with(self._gateway, self._key)
        if visitor is None:
            self.leave(unauthorized())
            raise unauthorized()
        return visitor

    # ---- sending and closing -------------------------------------------------------------------

    async def _flush(self) -> None:
        async with self._sending:
            while self._outbox:
                await self._send(self._outbox.popleft())

    async def _send(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None or self._ending is not None:
            raise ConnectionResetError("the connection is over")
        if transport.get_write_buffer_size() + len(data) <= NEVER_BLOCKS_BYTES:
            await self._ws.send_frame(data, WSMsgType.TEXT)
            return
        try:
            async with asyncio.timeout(self._gateway.settings.stream_limits.pause_timeout_s):
                await self._ws.send_frame(data, WSMsgType.TEXT)
        except TimeoutError:
            self._end(from_failure(TOO_SLOW))
            raise ConnectionResetError("the client does not read") from None

    def _close(self, action: Close) -> None:
        self._end(action.error)

    def _end(self, error: ApiError) -> None:
        """Close with this error's code. Nothing else is sent from now on."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._say_goodbye(error), name="tidegate-websocket-close")

    async def _say_goodbye(self, error: ApiError) -> None:
        """A client that does not take it in time is cut off."""
        transport = self._request.transport
        if transport is not None:
            self._loop.call_later(self._gateway.settings.linger_s, transport.abort)
        reason = clip(error.message, _MAX_REASON_CHARS).encode()
        await self._ws.close(code=TABLE[error.kind].close_code, message=reason, drain=False)
