"""One response while it is made: its events, who follows them, and how long it goes on with nobody there.

Runs on the event loop, in a task of its own that a connection may come and go beside; what that does is in
``maker.py``. A follower that lags is not waited for until the log is full; then the generation is pulled no
further, and the stream's mailbox does the rest. Once it has ended a run holds its response and its events,
and nothing else.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gateway.errors import ApiError, bad_request
from gateway.mailbox import FailureKind, StreamFailure
from gateway.news import News
from gateway.openai.responses.events import Event
from gateway.openai.responses.shape import ResponseObject
from gateway.responses.event_log import EventLog, EventsGoneError
from gateway.token_stream import TokenStream

_FIRST_FOLLOWER_S = 2.0
_INTERRUPTED = StreamFailure(FailureKind.INTERRUPTED, "The response was cancelled.")


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """``detached_s``: how long it goes on with no follower; None is to its end, whatever happens.

    ``max_log_bytes`` bounds the events that are kept of it.
    """

    detached_s: float | None
    max_log_bytes: int


class Interruption(enum.Enum):
    """Why a response is ended from outside. What was told of a steered one counts."""

    CANCELLED = "cancelled"
    STEERED = "steered"


TakeEvents = Callable[[Sequence[Event]], bool]
"""Takes these events, if it can do so at once; False if the task that follows is to take them."""


class _Follower:
    """Somebody who has taken all events up to ``position``."""

    __slots__ = ("_in_place", "_is_waiting", "news", "position")

    def __init__(self, position: int, in_place: TakeEvents | None) -> None:
        self.position = position
        self.news = News()
        self._in_place = in_place
        self._is_waiting = False

    def tell(self, events: Sequence[Event]) -> None:
        """These are new."""
        if self._in_place is None or not self._is_waiting or self.news.is_set or not events:
            self.news.set()
            return
        is_next = events[0].sequence_number == self.position + 1 and not events[-1].is_last
        if not is_next:
            self.news.set()
        elif self.news.offer(self._in_place, events):
            self.position = events[-1].sequence_number

    async def wait(self, timeout_s: float | None) -> bool:
        """For news; False if there were none for so long. Raises what ``in_place`` raised."""
        self._is_waiting = True
        try:
            return await self.news.come_within(timeout_s)
        finally:
            self._is_waiting = False


class ResponseRun:
    """A response in the making. ``response`` is how it stands; ``failure`` why it failed, if it did.

    ``interruption``: why it is being ended, if it is. ``is_streamed``: who asked for it wants its events.
    ``on_end`` is called once it has ended.
    """

    __slots__ = (
        "_detach_timer", "_ended", "_followers", "_on_end", "_policy", "_room", "_stream", "_task",
        "_was_followed", "failure", "id", "interruption", "is_streamed", "log", "response",
    )  # fmt: skip

    def __init__(
        self,
        response: ResponseObject,
        policy: RunPolicy,
        on_end: Callable[[ResponseRun], None],
        *,
        is_streamed: bool,
    ) -> None:
        self.id = response.id
        self.is_streamed = is_streamed
        self.response = response
        self.failure: ApiError | None = None
        self.interruption: Interruption | None = None
        self.log = EventLog(policy.max_log_bytes)
        self._policy = policy
        self._on_end = on_end
        self._followers: list[_Follower] = []
        self._was_followed = False
        self._room = asyncio.Event()
        self._ended = asyncio.Event()
        self._detach_timer: asyncio.TimerHandle | None = None
        self._stream: TokenStream | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin ``work``, which makes the response, tells its events and ends with it."""
        self._task = asyncio.create_task(self._see_through(work), name=f"tidegate-{self.id}")
        self._attend()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def interrupt(self, why: Interruption) -> None:
        """End it where it is. Its last event comes a moment later; one that has ended stays as it is."""
        if self.interruption is None and not self.log.is_ended:
            self.interruption = why
            self._room.set()
            if self._stream is not None:
                self._stream.end(_INTERRUPTED)

    async def cancel(self) -> None:
        """End it, and wait until that is done."""
        self.interrupt(Interruption.CANCELLED)
        await self._ended.wait()

    async def close(self) -> None:
        """Drop it, whatever state it is in: the server leaves."""
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _see_through(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._ended.set()
            self._stop_timer()
            self._on_end(self)

    # ---- those who follow ----

    async def follow(
        self,
        starting_after: int = -1,
        keepalive_s: float | None = None,
        in_place: TakeEvents | None = None,
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Its events behind that number, in order, to the last; nothing at all after each ``keepalive_s``.

        Who asks for more has taken what it got before. While it waits for more, ``in_place`` is offered what
        comes first, all but the last event. Raises ApiError (400) if there would be a gap.
        """
        try:
            self.log.check(starting_after)
        except EventsGoneError:
            raise events_gone() from None
        follower = _Follower(starting_after, in_place)
        self._followers.append(follower)
        self._was_followed = True
        self._attend()
        try:
            while not (self.log.is_ended and follower.position == self.log.next - 1):
                follower.news.clear()
                batch = self.log.after(follower.position)
                if not batch and not await follower.wait(keepalive_s):
                    yield ()
                if batch:
                    yield batch
                    follower.position = batch[-1].sequence_number
                    self._room.set()
        finally:
            self._followers.remove(follower)
            self._room.set()  # it may have been the one that lagged
            self._attend()

    def _attend(self) -> None:
        """Whether anybody is there has changed."""
        self._stop_timer()
        if self._followers or self.is_ended or self._policy.detached_s is None:
            return
        patience_s = self._policy.detached_s
        if not self._was_followed:  # whoever asked for it is about to
            patience_s = max(patience_s, _FIRST_FOLLOWER_S)
        loop = asyncio.get_running_loop()
        self._detach_timer = loop.call_later(patience_s, self.interrupt, Interruption.CANCELLED)

    def _stop_timer(self) -> None:
        if self._detach_timer is not None:
            self._detach_timer.cancel()
            self._detach_timer = None

    # ---- whoever makes it ----

    def tell(self, events: Sequence[Event]) -> None:
        """These come next."""
        self.log.add(events)
        for follower in self._followers:
            follower.tell(events)

    async def make_room(self, stream: TokenStream) -> None:
        """Let go what every follower has; with none there, what nobody may wait for. Waits for the rest.

        Who asked for it, and has not begun to follow it, is waited for as one who lags is. There is no
        waiting when ``stream`` has failed; raises StreamFailedError if it fails meanwhile.
        """
        while self.log.is_full and self.interruption is None and stream.failure is None:
            if self._followers:
                self.log.forget_until(min(follower.position for follower in self._followers))
            elif self._policy.detached_s is None:
                self.log.forget_until(self.log.next)
            elif self._was_followed:
                self.interrupt(Interruption.CANCELLED)
            if self.log.is_full and self.interruption is None:
                self._room.clear()
                async with stream.blocked():
                    await self._room.wait()

    @contextmanager
    def interrupting(self, stream: TokenStream) -> Iterator[None]:
        """Scope of a stream that an interruption ends, be it one that came before."""
        self._stream = stream
        if self.interruption is not None:
            stream.end(_INTERRUPTED)
        try:
            yield
        finally:
            self._stream = None


def events_gone() -> ApiError:
    return bad_request(
        "starting_after",
        "The events of this response cannot be had from there on any more; fetch the response itself.",
    )
