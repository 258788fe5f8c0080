"""Words of one token each, out of what a tokenizer counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtest.drivers.vocabulary import (
    FileVocabulary,
    VocabularyError,
    own_words,
    single_words,
    with_opening,
)

WORDS = [a + b + c for a in "bcdfg" for b in "aeiou" for c in "lmnrs"]


class Fake:
    """Has a token for each word with a space in front; any other letter is one by itself."""

    def __init__(self, words: Sequence[str], pairs: Sequence[str] = (), bare: Sequence[str] = ()) -> None:
        self.texts = ["\n", *(f" {word}" for word in words), *pairs, *bare]
        self.num_counts = 0
        longest_first = sorted(self.texts, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), "."]), re.DOTALL)

    async def count(self, text: str) -> int:
        self.num_counts += 1
        return 7 + len(self._pattern.findall(text))

    async def tokens(self, text: str) -> list[int]:
        return [
            self.texts.index(token) if token in self.texts else 0 for token in self._pattern.findall(text)
        ]

    async def text(self, tokens: Sequence[int]) -> str:
        if max(tokens) >= len(self.texts):
            return ""
        return "".join(self.texts[token] for token in tokens)


async def test_broken_words_are_found_in_few_counts() -> None:
    fake = Fake(["the", *WORDS])
    candidates = [*WORDS[:40], "zzz", *WORDS[40:90], "yy", *WORDS[90:]]
    assert await single_words(candidates, fake.count, 100) == WORDS
    assert fake.num_counts < 40


async def test_words_that_melt_with_their_neighbours_are_not_taken() -> None:
    fake = Fake(["the", "bal", "bam"], pairs=[" bal bam"])
    assert await single_words(["bal", "bam"], fake.count, 100) == ["bal", "bam"]  # each is well by itself
    assert await single_words(["bam", "zz"], fake.count, 100) == ["bam"]


async def test_it_gives_up_after_so_many_counts() -> None:
    fake = Fake(["the"])
    assert await single_words(WORDS, fake.count, 9) == []
    assert fake.num_counts <= 9


@pytest.mark.parametrize("window", [4096, 64, 9])
async def test_a_vocabulary_is_read_to_its_end(window: int) -> None:
    fake = Fake([*WORDS, "Upper", "a", "w0rd", "größe"])
    assert await own_words(fake, window) == WORDS


async def test_a_vocabulary_without_a_line_feed_tells_nothing() -> None:
    class Silent(Fake):
        async def tokens(self, text: str) -> list[int]:
            return []

    assert await own_words(Silent(WORDS), 4096) == []


async def test_the_opening_is_a_word_that_is_one_token_without_a_space_too() -> None:
    fake = Fake(WORDS, bare=["bam"])
    assert await with_opening(WORDS, fake) == ["bam", *(word for word in WORDS if word != "bam")]
    assert await with_opening(WORDS, Fake(WORDS)) == WORDS


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="cannot be read"):
        FileVocabulary(str(tmp_path / "none.json"))
