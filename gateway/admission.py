"""How much may be inside at once. Refuses early instead of queueing without end.

Pure counting on the event loop. Bounds: ``max_in_flight`` sequences and ``max_tokens`` tokens, which the
caller sets to what the engine can work on plus what may wait for it. What comes beyond is refused with 429
and a hint when to come back, from the rate at which tokens are served. A request for several sequences
takes as many permits, and as many tokens as its prompt and answers may have. All of it is released by
leaving its scope, whatever the reason.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import ApiError, ErrorKind
from gateway.service_rate import ReturnLine, ServiceRate


class Admission:
    """Permits of one gateway."""

    def __init__(
        self, max_in_flight: int, max_tokens: int = sys.maxsize, rate: ServiceRate | None = None
    ) -> None:
        assert max_in_flight > 0 and max_tokens > 0
        self._max_in_flight = max_in_flight
        self._max_tokens = max_tokens
        self._line = ReturnLine(rate or ServiceRate())
        self._in_flight = 0
        self._tokens = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def tokens(self) -> int:
        """That all that is inside may take."""
        return self._tokens

    @contextmanager
    def permit(self, count: int = 1, num_tokens: int = 0) -> Iterator[None]:
        """Hold so many places, and so many tokens. Raises ApiError at once when there are not as many."""
        self._check(count, num_tokens)
        self._in_flight += count
        self._tokens += num_tokens
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= count
            self._tokens -= num_tokens
            if self._in_flight == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no permit is held."""
        await self._idle.wait()

    def _check(self, count: int, num_tokens: int) -> None:
        if num_tokens > self._max_tokens:
            raise ApiError(
                ErrorKind.BAD_REQUEST,
                f"The request may take {num_tokens} tokens, prompts and answers together; this server takes"
                f" {self._max_tokens} at most at once (its KV pool plus --max-waiting-tokens).",
            )
        excess_seqs = self._in_flight + count - self._max_in_flight
        excess_tokens = self._tokens + num_tokens - self._max_tokens
        if excess_seqs > 0 or excess_tokens > 0:
            mean = self._tokens / max(self._in_flight, 1)
            retry_after_s = self._line.retry_after_s(
                max(excess_tokens, excess_seqs * mean),
                max(
                    num_tokens, count * mean
                ),  # before its prompt is read it is taken for one like the others
                asyncio.get_running_loop().time(),
            )
            raise ApiError(
                ErrorKind.BUSY,
                f"The server is busy with {self._in_flight} sequences of up to {self._tokens} tokens in all;"
                " try again later.",
                retry_after_s=retry_after_s,
            )
