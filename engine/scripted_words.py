"""Words that tell the time: which token of a vocabulary a scripted engine emits when. Pure.

The words are the tokens that are a space and ASCII letters, by their ids. Time is counted in ticks of 0.1 ms,
and each tick's word follows the last one's, so that whoever sees the text of a token knows when it was
emitted, by the same clock, give or take a whole turn of the vocabulary (over a second for 10,000 words).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TICKS_PER_S = 10_000
_WORD = re.compile(r"[\u0120\u2581]([A-Za-z]+)")  # as byte-level BPE and SentencePiece write a space


@dataclass(frozen=True, slots=True)
class Words:
    """``texts`` are those of ``token_ids``."""

    token_ids: Sequence[int]
    texts: Sequence[str]

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> Words:
        """Raises ValueError if there is no word in it."""
        found = sorted(
            (token_id, match[1])
            for token, token_id in vocabulary.items()
            if (match := _WORD.fullmatch(token))
        )
        if not found:
            raise ValueError("the vocabulary has no token that is a word")
        return cls([token_id for token_id, _ in found], [f" {word}" for _, word in found])

    def token_id(self, at_s: float, offset: int) -> int:
        """What is emitted at that time; ``offset`` makes sequences say different words at one time."""
        return self.token_ids[(int(at_s * TICKS_PER_S) + offset) % len(self.token_ids)]

    def age_s(self, index: int, offset: int, now_s: float) -> float:
        """How long before ``now_s`` the word with that index was emitted, to a tick, for less than a turn."""
        ticks = (int(now_s * TICKS_PER_S) + offset - index) % len(self.token_ids)
        return ticks / TICKS_PER_S
