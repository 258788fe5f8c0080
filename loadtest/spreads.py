"""How lengths and pauses are spread, as they are written on a command line. Pure.

``512`` is always the same, ``uniform:64:512`` has both ends, ``normal:512:64`` mean and standard deviation,
``lognormal:512:0.5`` the median and the standard deviation of the logarithm.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

_KINDS: dict[str, Literal["uniform", "normal", "lognormal"]] = {
    "uniform": "uniform",
    "normal": "normal",
    "lognormal": "lognormal",
}


MOST = 10_000_000  # tokens, turns or seconds
_WIDEST = 5  # of a lognormal one: with more, most of what is drawn is next to nothing or without measure


class SpreadError(ValueError):
    """Not written as a spread is. The message is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class Spread:
    """``centre`` and ``width``: of a uniform one its ends, of a fixed one its value and 0."""

    kind: Literal["fixed", "uniform", "normal", "lognormal"]
    centre: float
    width: float = 0.0

    def draw_whole(self, rng: random.Random) -> int:
        """A whole number of at least 1; what comes out smaller is drawn again."""
        if self.kind == "uniform":
            return rng.randint(math.ceil(self.centre), math.floor(self.width))
        while (drawn := round(self._draw(rng))) < 1:
            pass
        return drawn

    def draw_seconds(self, rng: random.Random) -> float:
        """At least 0; what comes out smaller is drawn again."""
        while (drawn := self._draw(rng)) < 0:
            pass
        return drawn

    def _draw(self, rng: random.Random) -> float:
        if self.kind == "uniform":
            return rng.uniform(self.centre, self.width)
        if self.kind == "normal":
            return rng.gauss(self.centre, self.width)
        if self.kind == "lognormal":
            return self.centre * math.exp(rng.gauss(0.0, self.width))
        return self.centre


def parse_tokens(text: str) -> Spread:
    """Of whole numbers from 1 on: tokens, or turns. Raises SpreadError."""
    spread = _parse(text)
    ends = (spread.centre, spread.width) if spread.kind == "uniform" else (spread.centre,)
    if spread.centre < 1 or (spread.kind in ("fixed", "uniform") and any(end % 1 for end in ends)):
        raise SpreadError(f"{text!r} must be made of whole numbers from 1 on.")
    return spread


def parse_seconds(text: str) -> Spread:
    """Of times of 0 or more. Raises SpreadError."""
    return _parse(text)


def _parse(text: str) -> Spread:
    name, *numbers = text.split(":")
    kind = _KINDS.get(name)
    try:
        if kind is None and not numbers:
            spread = Spread("fixed", float(name))
        elif kind is not None and len(numbers) == 2:
            spread = Spread(kind, float(numbers[0]), float(numbers[1]))
        else:
            raise ValueError(text)
    except ValueError:
        raise SpreadError(
            f"{text!r} must be a number, uniform:LOW:HIGH, normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA."
        ) from None
    if (
        not (math.isfinite(spread.centre) and math.isfinite(spread.width))
        or min(spread.centre, spread.width) < 0
    ):
        raise SpreadError(f"{text!r} must be made of numbers of 0 or more.")
    if max(spread.centre, spread.width) > MOST or (spread.kind == "lognormal" and spread.width > _WIDEST):
        raise SpreadError(f"{text!r} has numbers above {MOST:,}, or a SIGMA above {_WIDEST}.")
    if spread.kind == "uniform" and spread.centre > spread.width:
        raise SpreadError(f"{text!r} must have its lower end first.")
    return spread
