"""Who comes back when and says what: sessions with a history, drawn from a seed. Pure.

Lengths and return times are log-normal. A return time is from turn to turn of a session, whatever the server
does meanwhile, so that all servers get the same schedule. At the start it has been going on for long: nobody
is in step with anybody.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

SUBJECTS = ("sailor", "farmer", "teacher", "doctor", "river", "night", "lamp", "letter", "tide", "ship")
VERBS = ("keeps", "finds", "carries", "follows", "leaves", "watches")
KINDS = ("old", "quiet", "green", "heavy", "bright", "small")
PLACES = ("under", "over", "near", "behind", "before", "after")
THINGS = (
    "harbour", "village", "island", "bridge", "market", "garden", "window", "table", "stone", "cloud", "road",
    "hill", "gate", "engine", "music", "paper", "winter", "summer", "morning", "evening",
)  # fmt: skip
TEMPLATE_TOKENS = 30  # that the built-in model's template puts around a conversation of one message
TURN_TOKENS = 12  # that it puts around a later message and its answer, at most
_LONG_AGO = 30  # mean return times before the start; by then nothing is left of how it began


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal number, cut at both ends."""

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        drawn = self.median * math.exp(rng.gauss(0.0, self.sigma))
        return round(min(max(drawn, self.least), self.most))


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What is drawn from. Lengths in tokens; an answer ends at its limit at the latest.

    ``return_sigma``: of the return times, whose mean follows from the rate of turns.
    """

    num_sessions: int = 200
    history: Spread = Spread(480, 0.4, 120, 1200)
    message: Spread = Spread(16, 0.5, 4, 64)
    answer: tuple[int, int] = (4, 16)
    return_sigma: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """``at`` in seconds from the start. ``number`` counts the turns of a session; 0 makes its history."""

    session: int
    number: int
    at: float
    message: str
    max_tokens: int


class LoadPlan:
    """All that is ever said. ``history_tokens``: of each session at the start, without its first answer."""

    def __init__(self, shape: LoadShape) -> None:
        self.shape = shape
        rng = random.Random(f"{shape.seed} lengths")
        self.history_tokens = tuple(shape.history.draw(rng) for _ in range(shape.num_sessions))

    def openings(self) -> list[PlannedTurn]:
        """The turns that bring every session to its starting history, in no order."""
        turns = []
        for session, num_tokens in enumerate(self.history_tokens):
            rng = self._rng(session, "opening")
            story = words(rng, num_tokens - TEMPLATE_TOKENS)
            turns.append(PlannedTurn(session, 0, 0.0, story, rng.randint(*self.shape.answer)))
        random.Random(f"{self.shape.seed} order").shuffle(turns)
        return turns

    def returns(self, turns_per_s: float, seconds: float) -> list[PlannedTurn]:
        """The turns that come within that time, by session and time."""
        mean_s = self.shape.num_sessions / turns_per_s
        turns = []
        for session in range(self.shape.num_sessions):
            rng = self._rng(session, "returns")
            for number, at in enumerate(self._times(session, mean_s, seconds), start=1):
                message = words(rng, self.shape.message.draw(rng))
                turns.append(PlannedTurn(session, number, at, message, rng.randint(*self.shape.answer)))
        return turns

    def window(self, num_turns: int) -> int:
        """Tokens that no session exceeds within so many turns."""
        shape = self.shape
        return max(self.history_tokens) + num_turns * (shape.message.most + shape.answer[1] + TURN_TOKENS)

    def _times(self, session: int, mean_s: float, seconds: float) -> Iterator[float]:
        rng, sigma = self._rng(session, "times"), self.shape.return_sigma
        at = -_LONG_AGO * mean_s
        while (at := at + mean_s * math.exp(rng.gauss(-sigma * sigma / 2, sigma))) < seconds:
            if at >= 0:
                yield at

    def _rng(self, session: int, what: str) -> random.Random:
        return random.Random(f"{self.shape.seed} {session} {what}")


def words(rng: random.Random, count: int) -> str:
    """Sentences of so many words and stops; each is one token of the built-in model."""
    found: list[str] = []
    while len(found) < count:
        sentence = (
            "The", rng.choice(KINDS), rng.choice(SUBJECTS), rng.choice(VERBS), "the", rng.choice(KINDS),
            rng.choice(THINGS), rng.choice(PLACES), "the", rng.choice(THINGS), ".",
        )  # fmt: skip
        found += sentence
    return " ".join(found[: count - 1]).replace(" .", ".") + "." if count > 1 else "Yes"
