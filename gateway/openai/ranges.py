"""Ranges of numbers in requests, and how much of a thing they may have. Pure. NaN is in no range."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.errors import bad_request

MAX_N = 128
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 300
MAX_LOGPROBS = 20
MAX_PROMPTS = 256
MAX_FORM_CHOICES = 1024
MAX_PRIORITY = 100  # and its negative
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
MAX_NAME_CHARS = 512
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
TTL_PATTERN = "^[1-9][0-9]{0,4}[smhd]$"
CACHE_RETENTIONS = ("in-memory", "in_memory", "24h")


@dataclass(frozen=True, slots=True)
class Range:
    """From ``low``, itself left out if ``low_is_open``, to ``high``. Its text completes "must be ..."."""

    low: float
    high: float
    low_is_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_is_open else value >= self.low
        return math.isfinite(value) and above and value <= self.high

    def __str__(self) -> str:
        return f"{'above' if self.low_is_open else 'at least'} {self.low:g} and at most {self.high:g}"

    @property
    def schema(self) -> dict[str, float]:
        """In the words of JSON Schema."""
        return {"exclusiveMinimum" if self.low_is_open else "minimum": self.low, "maximum": self.high}


LOGIT_BIAS = Range(-100, 100)
LENGTH_PENALTY = Range(-10, 10)


def check_count(value: int | None, high: int, param: str, *, low: int = 0) -> int | None:
    """A number from ``low`` to ``high``, or None."""
    if value is not None and not low <= value <= high:
        raise bad_request(param, f"'{param}' must be at least {low} and at most {high}.")
    return value
