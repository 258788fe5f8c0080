"""What a request says of the KV of its history: how long it is to be kept, and with what it goes together.

Pure; runs on offload threads. ``prompt_cache_options.ttl`` is how long at least, ``prompt_cache_retention``
how far down: ``in_memory`` never reaches the disk, ``24h`` is a day unless a ttl says otherwise. Hints
change no text: what was not kept is computed again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.errors import bad_request
from gateway.openai.ranges import CACHE_RETENTIONS, MAX_NAME_CHARS, TTL_PATTERN
from gateway.openai.wire import SamplingFields

_TTL = re.compile(TTL_PATTERN)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY_S = 86400.0
MAX_KEEP_S = 30 * _DAY_S


@dataclass(frozen=True, slots=True)
class CacheHints:
    """``keep_s``: seconds after its last use, 0 if none were asked for. ``key``: of its session, if given."""

    keep_s: float = 0.0
    may_reach_disk: bool = True
    key: str | None = None


NO_HINTS = CacheHints()


def check_cache_hints(wire: SamplingFields) -> CacheHints:
    """Raises ApiError naming the first bad field."""
    retention, options = wire.prompt_cache_retention, wire.prompt_cache_options
    if retention not in (None, *CACHE_RETENTIONS):
        raise bad_request(
            "prompt_cache_retention", '\'prompt_cache_retention\' must be "in_memory" or "24h".'
        )
    keep_s = _DAY_S if retention == "24h" else 0.0
    if options is not None and options.mode not in (None, "implicit", "explicit"):
        raise bad_request(
            "prompt_cache_options.mode", "'prompt_cache_options.mode' must be implicit or explicit."
        )
    if options is not None and len(options.comparison_response_id or "") > MAX_NAME_CHARS:
        name = "prompt_cache_options.comparison_response_id"
        raise bad_request(name, f"'{name}' must have at most {MAX_NAME_CHARS} characters.")
    if options is not None and options.ttl is not None:
        keep_s = _seconds(options.ttl)
    return CacheHints(
        keep_s,
        may_reach_disk=retention in (None, "24h"),
        key=wire.prompt_cache_key or None,
    )


def _seconds(ttl: str) -> float:
    if not _TTL.fullmatch(ttl):
        raise bad_request(
            "prompt_cache_options.ttl",
            "'prompt_cache_options.ttl' must be a time such as 30m, 12h or 7d.",
        )
    return min(float(ttl[:-1]) * _UNITS[ttl[-1]], MAX_KEEP_S)
