"""The parts of a check, in their order, with the time that each may take; and what a part is told. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

TOTAL_S = 470.0  # for a whole check: under eight minutes
LEAST_S = 5.0  # with less left a part is not begun


@dataclass(frozen=True, slots=True)
class Part:
    """``name`` is also the module that measures it; ``budget_s`` is several times what it should take."""

    name: str
    budget_s: float


# What others stand beside comes first, then what is judged. What may be left out for want of time is last.
CHECK = (
    Part("limits", 60),
    Part("gpu_tests", 150),
    Part("decode", 90),
    Part("extend", 60),
    Part("limits_again", 30),
    Part("swap", 60),
    Part("steps", 90),
    Part("generation", 120),
    Part("transformers_batching", 90),
    Part("interference", 90),
    Part("transformers_generate", 90),
)
SWEEP = (
    Part("limits", 60),
    Part("sweep_decode", 240),
    Part("sweep_extend", 240),
    Part("sweep_layout", 120),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a part is told. ``measured``: figures of earlier parts, by name. It is ended at ``deadline``, of
    ``time.monotonic``, which all processes share."""

    device: str
    scale: str
    measured: dict[str, float] = {}
    deadline: float = math.inf


def chosen(parts: tuple[Part, ...], names: tuple[str, ...]) -> tuple[Part, ...]:
    """Those named, and the first, which has the limits; all if none is. Raises ValueError for others."""
    unknown = set(names) - {part.name for part in parts}
    if unknown:
        known = ", ".join(part.name for part in parts)
        raise ValueError(f"there is no part {min(unknown)}; the parts are {known}")
    return tuple(part for part in parts if not names or part.name in (parts[0].name, *names))
