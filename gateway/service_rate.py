"""How fast the engine serves tokens, and how long it will be until there is room again.

Pure. The rate is of the last seconds in which the engine worked: each step adds its tokens and its seconds
to two sums whose past fades by half in ``_HALF_LIFE_S`` of work. Time in which there was nothing to do does
not count, so a rate measured before a pause stands after it.
"""

from __future__ import annotations

_HALF_LIFE_S = 5.0
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class ServiceRate:
    """Prompt and answer tokens per second of work."""

    def __init__(self) -> None:
        self._total = 0
        self._tokens = 0.0
        self._seconds = 0.0

    def note_step(self, total_tokens: int, seconds: float) -> None:
        """A step took so long; the engine has served ``total_tokens`` since it started.

        Fewer than before are those of another engine, which took its place.
        """
        before, self._total = self._total, total_tokens
        served = total_tokens - before if total_tokens >= before else total_tokens
        fade = 0.5 ** (seconds / _HALF_LIFE_S)
        self._tokens = self._tokens * fade + served
        self._seconds = self._seconds * fade + seconds

    @property
    def tokens_per_s(self) -> float:
        """0 until something was served."""
        return self._tokens / self._seconds if self._seconds else 0.0


class ReturnLine:
    """When those who find no room should come back: one after the other, as room will be made.

    Who was told to come back is reckoned with until its turn has passed, so that many who are refused at once
    do not return at once. Bound: two numbers are kept, however many were told.
    """

    def __init__(self, rate: ServiceRate) -> None:
        self._rate = rate
        self._ahead = 0.0
        self._since_s = 0.0

    def retry_after_s(self, excess: float, asked: float, now_s: float) -> float:
        """For a request for ``asked`` tokens that would fit if ``excess`` of those inside had been served."""
        tokens_per_s = self._rate.tokens_per_s
        if not tokens_per_s:
            return MIN_RETRY_S
        ahead = max(self._ahead - (now_s - self._since_s) * tokens_per_s, 0.0)
        self._ahead, self._since_s = min(ahead + asked, MAX_RETRY_S * tokens_per_s), now_s
        return min(max((excess + ahead) / tokens_per_s, MIN_RETRY_S), MAX_RETRY_S)
