"""How much may be inside at once. Refuses early instead of queueing without end.

Pure counting on the event loop. Bounds: ``max_in_flight`` sequences and ``max_tokens`` tokens, which the
caller sets to what the engine can work on plus what may wait for it. What comes beyond is refused with 429
and a hint when to come back, from the rate at which tokens are served. A request for several sequences
takes as many permits, and as many tokens as its prompt and answers may have. No tenant can take so much that
others find the house full. All of it is released by leaving its scope, whatever the reason.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import ApiError, ErrorKind
from gateway.service_rate import ReturnLine, ServiceRate
from gateway.shared_room import Holder, SharedRoom


class Admission:
    """Permits of one gateway."""

    def __init__(
        self, max_in_flight: int, max_tokens: int = sys.maxsize, rate: ServiceRate | None = None
    ) -> None:
        self._seqs = SharedRoom(max_in_flight)
        self._tokens = SharedRoom(max_tokens)
        self._line = ReturnLine(rate or ServiceRate())
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return self._seqs.used

    @property
    def tokens(self) -> int:
        """That all that is inside may take."""
        return self._tokens.used

    @contextmanager
    def permit(self, holder: Holder, count: int = 1, num_tokens: int = 0) -> Iterator[None]:
        """Hold so many places, and so many tokens. Raises ApiError at once when there are not as many."""
        self._check(holder, count, num_tokens)
        self._seqs.take(holder, count)
        self._tokens.take(holder, num_tokens)
        self._idle.clear()
        try:
            yield
        finally:
            self._seqs.give_back(holder, count)
            self._tokens.give_back(holder, num_tokens)
            if not self._seqs.used:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no permit is held."""
        await self._idle.wait()

    def _check(self, holder: Holder, count: int, num_tokens: int) -> None:
        if num_tokens > self._tokens.capacity:
            raise ApiError(
                ErrorKind.BAD_REQUEST,
                f"The request may take {num_tokens} tokens, prompts and answers together; this server takes"
                f" {self._tokens.capacity} at most at once (its KV pool plus --max-waiting-tokens).",
            )
        excess_seqs = self._seqs.lacking(holder, count)
        excess_tokens = self._tokens.lacking(holder, num_tokens)
        if excess_seqs > 0 or excess_tokens > 0:
            mean = self._tokens.used / max(self._seqs.used, 1)
            retry_after_s = self._line.retry_after_s(
                max(excess_tokens, excess_seqs * mean),
                max(
                    num_tokens, count * mean
                ),  # before its prompt is read it is taken for one like the others
                asyncio.get_running_loop().time(),
            )
            raise ApiError(
                ErrorKind.BUSY,
                f"The server is busy with {self._seqs.used} answers, {self._seqs.held(holder)} of them yours;"
                " try again later.",
                retry_after_s=retry_after_s,
            )
