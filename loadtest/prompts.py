"""Prompts of an exact number of tokens, made of words that are one token each. Pure.

A text is a sequence of parts, and a part's words follow from the salt and the part's key alone: prompts with
the same first parts begin with the same text, and with another salt nothing is alike.

All texts start with the same word, ``Words.opening``. What a tokenizer makes of a word that stands after no
space is therefore the same for all, and counts as the template's cost.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

_KEPT_PARTS = 4096  # blocks whose words are kept: a trace comes back to them


@dataclass(frozen=True, slots=True)
class Words:
    """Each is one token of the server wherever it stands after a space."""

    words: Sequence[str]
    verified: bool  # by the server's own tokenizer, or only by what usage said

    def __post_init__(self) -> None:
        assert len(self.words) > 1 and not any(" " in word for word in self.words)

    @property
    def opening(self) -> str:
        return self.words[0]

    def probe(self, num_tokens: int) -> str:
        """A text to measure a template with: it starts as all prompts do."""
        return " ".join([self.opening, *(self.words[i % len(self.words)] for i in range(1, num_tokens))])


@dataclass(frozen=True, slots=True)
class TemplateCost:
    """Tokens that the API adds around a text; below 0 if it takes some away."""

    first: int  # around a first turn's
    later: int  # around a later turn's, with what ends the answer before it


@dataclass(frozen=True, slots=True)
class Part:
    """So many words, seeded by ``key``; a shorter part of the same key is the beginning of a longer one."""

    key: str
    num_tokens: int
    is_shared: bool = True  # other prompts may have it too


def block_part(block_id: int, num_tokens: int) -> Part:
    """A piece of a trace's prompt."""
    return Part(f"block {block_id}", num_tokens)


class Prompts:
    """Texts of one repeat, whose salt keeps them out of what earlier ones left in a prefix cache."""

    def __init__(self, words: Words, salt: str) -> None:
        self._words = words
        self._salt = salt
        self._kept = lru_cache(maxsize=_KEPT_PARTS)(self._draw)

    def block(self, block_id: int, num_tokens: int) -> str:
        """The first so many words of a block of a trace."""
        return self._kept(block_part(block_id, num_tokens))

    def text(self, num_tokens: int, parts: Iterable[Part]) -> str:
        """The opening word, then the parts until there are enough; they must suffice."""
        assert num_tokens >= 1
        found, left = [self._words.opening], num_tokens - 1
        for part in parts:
            if not left:
                break
            taken = replace(part, num_tokens=min(part.num_tokens, left))
            if taken.num_tokens:
                found.append(self._kept(taken) if part.is_shared else self._draw(taken))
                left -= taken.num_tokens
        assert not left
        return " ".join(found)

    def _draw(self, part: Part) -> str:
        rng = random.Random(f"{self._salt} {part.key}")
        return " ".join(rng.choices(self._words.words, k=part.num_tokens))
