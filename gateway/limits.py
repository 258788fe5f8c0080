"""What a tenant may use in a minute and at once, and what it has used: counted, refused, given back.

Pure; time is passed in, in whole milliseconds of a clock that never goes back. Limits per minute are
sliding windows (a log of what was used, as in "sliding window log" limiters, kept in slots of a quarter of
a second): in any 60 seconds there is never more than the limit, and a refusal can say exactly when there
will be room. Tokens are reserved when a request comes in, as many as it may take, and what it left is taken
out of the window when it ends: a window, unlike a bucket that refills, then counts as if only that had ever
been used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.errors import ApiError, ErrorKind

WINDOW_MS = 60_000
SLOT_MS = 250
_SEAT_RETRY_S = 1.0  # nobody knows when an answer ends

LimitName = Literal["concurrency", "requests", "tokens"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one tenant; None is no limit. ``max_concurrent`` counts answers: a request for n of them takes n."""

    max_concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


NO_LIMITS = Limits()


def _header(what: str, of: str) -> str:
    return f"x-ratelimit-{what}-{of}"


RATE_LIMIT_HEADERS = tuple(
    _header(what, of) for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)


class LimitError(ApiError):
    """A tenant's own limit refuses a request. ``limit`` is the label of the metric."""

    def __init__(
        self, kind: ErrorKind, limit: LimitName, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(kind, message, retry_after_s=retry_after_s)
        self.limit = limit


class Window:
    """What was used in the last minute. Bound: one number for each of its 241 slots."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}  # amount by slot number, oldest first
        self._used = 0

    def used(self, now_ms: int) -> int:
        while self._slots and self._leaves_ms(oldest := next(iter(self._slots))) <= now_ms:
            self._used -= self._slots.pop(oldest)
        return self._used

    def add(self, amount: int, now_ms: int) -> int:
        """Count so much as used now. Returns the slot, for ``give_back``."""
        self.used(now_ms)
        slot = now_ms // SLOT_MS
        self._slots[slot] = self._slots.get(slot, 0) + amount
        self._used += amount
        return slot

    def give_back(self, amount: int, slot: int) -> None:
        """So much of what was added in a slot was not used after all."""
        if slot in self._slots:
            self._slots[slot] -= amount
            self._used -= amount

    def wait_ms(self, amount: int, limit: int, now_ms: int) -> int:
        """How long until ``amount``, which is at most ``limit``, fits, if nothing else comes and goes."""
        assert amount <= limit
        excess = self.used(now_ms) + amount - limit
        for slot, used in self._slots.items():
            if excess <= 0:
                break
            excess -= used
            if excess <= 0:
                return self._leaves_ms(slot) - now_ms
        return 0

    def reset_ms(self, now_ms: int) -> int:
        """How long until nothing is left in the window."""
        self.used(now_ms)
        slots = [slot for slot, used in self._slots.items() if used]
        return self._leaves_ms(slots[-1]) - now_ms if slots else 0

    @staticmethod
    def _leaves_ms(slot: int) -> int:
        return (slot + 1) * SLOT_MS + WINDOW_MS


class Reservation:
    """Tokens that one request may take. What it takes beyond them is counted as it comes."""

    __slots__ = ("_reserved", "_slot", "_used", "_window")

    def __init__(self, window: Window, reserved: int, now_ms: int) -> None:
        self._window = window
        self._reserved = reserved
        self._slot = window.add(reserved, now_ms)
        self._used = 0

    def try_use(self, count: int) -> bool:
        """``use`` of what is within the reservation, for which the time is no matter."""
        if self._used + count > self._reserved:
            return False
        self._used += count
        return True

    def use(self, count: int, now_ms: int) -> None:
        beyond = self._used + count - max(self._reserved, self._used)
        self._used += count
        if beyond > 0:
            self._window.add(beyond, now_ms)

    def use_up(self) -> None:
        """All of it was taken, or may have been."""
        self._used = max(self._used, self._reserved)

    def settle(self) -> None:
        """The request has ended: what it did not use was never used. Once."""
        self._window.give_back(max(self._reserved - self._used, 0), self._slot)


class Account:
    """What one tenant has used lately and holds now, whatever its limits. It outlives a reload of them.

    ``generated_total``, and ``last_ttft_s``, its last wait for a first token, limit nothing: they are told.
    """

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.in_flight = 0
        self.generated_total = 0
        self.last_ttft_s: float | None = None

    def why_no_request(self, limits: Limits, now_ms: int) -> LimitError | None:
        """Why one more request cannot come in; None if it can."""
        limit = limits.requests_per_minute
        if limit is None or not (wait_ms := self.requests.wait_ms(1, limit, now_ms)):
            return None
        return LimitError(
            ErrorKind.REQUEST_LIMIT,
            "requests",
            f"Rate limit reached: {limit} requests per minute. Try again in {duration(wait_ms)}.",
            wait_ms / 1000,
        )

    def why_no_seats(self, limits: Limits, count: int, held: int = 0) -> LimitError | None:
        """Why a request that has ``held`` cannot have ``count`` more answers at once; None if it can."""
        limit = limits.max_concurrent
        if limit is None or self.in_flight + count <= limit:
            return None
        if held + count > limit:
            return LimitError(
                ErrorKind.ABOVE_LIMIT,
                "concurrency",
                f"The request is for {held + count} answers at once; this key may have {limit}.",
            )
        return LimitError(
            ErrorKind.REQUEST_LIMIT,
            "concurrency",
            f"Rate limit reached: {limit} answers at once. Try again when one of them has ended.",
            _SEAT_RETRY_S,
        )

    def why_no_tokens(self, limits: Limits, count: int, now_ms: int) -> LimitError | None:
        """Why a request that may take so many tokens cannot start; None if it can."""
        limit = limits.tokens_per_minute
        if limit is None:
            return None
        if count > limit:
            return LimitError(
                ErrorKind.ABOVE_LIMIT,
                "tokens",
                f"The request may take {count} tokens, prompt and answers together; this key has {limit} per"
                " minute, so it can never start. Shorten the prompt, or lower 'max_tokens' or 'n'.",
            )
        wait_ms = self.tokens.wait_ms(count, limit, now_ms)
        if not wait_ms:
            return None
        if limits.requests_per_minute is not None:  # the next try is a request again
            wait_ms = max(wait_ms, self.requests.wait_ms(1, limits.requests_per_minute, now_ms))
        used = self.tokens.used(now_ms)
        return LimitError(
            ErrorKind.TOKEN_LIMIT,
            "tokens",
            f"Rate limit reached: {limit} tokens per minute, of which {used} are used or reserved; this"
            f" request may take {count}. Try again in {duration(wait_ms)}.",
            wait_ms / 1000,
        )

    def headers(self, limits: Limits, now_ms: int) -> dict[str, str]:
        """OpenAI's rate-limit headers, for those limits that there are."""
        found = {}
        for name, window, limit in (
            ("requests", self.requests, limits.requests_per_minute),
            ("tokens", self.tokens, limits.tokens_per_minute),
        ):
            if limit is not None:
                found[_header("limit", name)] = str(limit)
                found[_header("remaining", name)] = str(max(limit - window.used(now_ms), 0))
                found[_header("reset", name)] = duration(window.reset_ms(now_ms))
        return found


def duration(ms: int) -> str:
    """In the form of OpenAI's headers: ``120ms``, ``7.66s``, ``1m0s``."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest_ms / 1000:g}s"
