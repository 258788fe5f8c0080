"""Beam search: which continuations of a prompt live on, which are finished, and when to stop.

Pure. The rules are those of ``generate(num_beams=k)`` in transformers 5: each step ranks the likeliest
continuations of all beams by their summed log probabilities; of the first k those that end are finished,
the first k that do not end live on. A finished one is scored by its sum over length ** length_penalty,
where the length counts generated tokens, the one that ended it included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import BeamParams
from engine.schedule import SampledToken


@dataclass(frozen=True, slots=True)
class _Path:
    """A generated token and what came before it. Beams share the paths that they have in common."""

    before: _Path | None
    token: SampledToken
    score: float


@dataclass(frozen=True, slots=True)
class Survivor:
    """A beam of the next step: the one with index ``parent`` in this step, and one more token."""

    parent: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence: its generated tokens, and its score after the length penalty."""

    tokens: tuple[SampledToken, ...]
    score: float


class BeamSearch:
    """One search, step by step. ``done`` once nothing more is to be computed."""

    def __init__(self, params: BeamParams, stop_token_ids: frozenset[int], max_tokens: int) -> None:
        self.done = False
        self._params = params
        self.stop_token_ids = stop_token_ids
        self._max_tokens = max_tokens
        self._beams: list[_Path | None] = [None]
        self._length = 0
        self._finished: list[tuple[float, _Path]] = []  # the k best, best first

    @property
    def num_candidates(self) -> int:
        """A step must know so many likeliest tokens of each beam, and as many that do not end the text."""
        return self._params.width

    def advance(self, rows: Sequence[Sequence[SampledToken]]) -> tuple[Survivor, ...]:
        """One step; returns the beams of the next one, best first; none when the search is done.

        ``rows``: of each beam in the order in which they survived, its likeliest next tokens with their log
        probabilities. At first there is one beam, the prompt.
        """
        assert len(rows) == len(self._beams) and not self.done
        width = self._params.width
        self._length += 1
        ranked = self._ranked(rows)
        self._finish([path for _, path in ranked[:width] if self._ends(path)])
        living = [(parent, path) for parent, path in ranked if not self._ends(path)][:width]
        self._beams = [path for _, path in living]
        self.done = not living or self._is_content() or not self._may_improve(living[0][1].score)
        return () if self.done else tuple(Survivor(parent, path.token.token_id) for parent, path in living)

    def best(self, count: int) -> list[Hypothesis]:
        """The ``count`` best finished sequences, best first; fewer if the vocabulary gave no more."""
        return [Hypothesis(_tokens(path), score) for score, path in self._finished[:count]]

    def _ranked(self, rows: Sequence[Sequence[SampledToken]]) -> list[tuple[int, _Path]]:
        candidates = [
            (parent, _Path(beam, token, (beam.score if beam else 0.0) + token.log_probability))
            for parent, (beam, row) in enumerate(zip(self._beams, rows, strict=True))
            for token in row
            if token.log_probability > -math.inf
        ]
        return sorted(candidates, key=lambda candidate: -candidate[1].score)

    def _ends(self, path: _Path) -> bool:
        return self._length >= self._max_tokens or path.token.token_id in self.stop_token_ids

    def _finish(self, paths: Sequence[_Path]) -> None:
        divisor = math.pow(self._length, self._params.length_penalty)
        merged = [*self._finished, *((path.score / divisor, path) for path in paths)]
        self._finished = sorted(merged, key=lambda pair: -pair[0])[: self._params.width]

    @property
    def _is_full(self) -> bool:
        return len(self._finished) == self._params.width

    def _is_content(self) -> bool:
        """Enough are finished, and nobody asked to look for better ones."""
        return self._is_full and self._params.early_stopping is True

    def _may_improve(self, best_score: float) -> bool:
        """Whether the best beam, by a guess at its final length, may yet beat the worst finished one."""
        if not self._is_full:
            return True
        patient = self._params.early_stopping == "never" and self._params.length_penalty > 0
        length = self._max_tokens if patient else self._length
        best_possible = best_score / math.pow(length, self._params.length_penalty)
        return best_possible > self._finished[-1][0]


def _tokens(path: _Path | None) -> tuple[SampledToken, ...]:
    tokens = []
    while path is not None:
        tokens.append(path.token)
        path = path.before
    return tuple(reversed(tokens))
