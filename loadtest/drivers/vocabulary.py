"""Finds words that are one token each, by asking how many tokens a text has. Pure, but for reading a file.

Who knows the tokenizer is asked for its own words: the tokens of the vocabulary, as texts. Who does not gets
common ones. Either way each is counted in its place, behind a space, many at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

ENOUGH = 2000  # words; more make prompts no more different
FEWEST = 32
_BATCH = 64
_STEP = 1000
_NEAR = 16
_IDS_READ = 24_000  # the first ones of a vocabulary are its commonest, but for bytes and marks
_COMMON_TEXT = """
the of and to in is that for it as was with on be by at this have from or had an they which you were all
their there would when if so no out up into do any your what has man could other than our some very time
about may more now only my over such before then who these two well first must where much good know long
way work year day life water world house people place right hand part small large great little old new
different high name home read number line set end another own state school head story left city food sun
plant cover earth light night point page letter mother answer study learn air animal play sound build
family group music white paper river car feet second book idea eat face watch far talk bird soon list song
leave door product black short class wind question fire problem south north piece space order horse color
stand passed top heard best better strong table trade road field size dark rule material special heavy
king street boat minute game million star money serve area mark map mountain power town fine drive
"""
COMMON = tuple(_COMMON_TEXT.split())
"""English words that hardly any vocabulary breaks up."""


class VocabularyError(ValueError):
    """A tokenizer cannot be used. The message is a plain sentence for the user."""


class Vocabulary(Protocol):
    """A tokenizer, wherever it is; it adds no special tokens. Raises VocabularyError if it is silent."""

    async def tokens(self, text: str) -> list[int]: ...

    async def text(self, tokens: Sequence[int]) -> str:
        """Empty if some of them are not of the vocabulary."""
        ...


class Counter(Protocol):
    async def __call__(self, text: str) -> int:
        """Tokens of a text, with any constant added."""
        ...


async def single_words(candidates: Iterable[str], count: Counter, max_counts: int) -> list[str]:
    """Those that are one token each behind a space, in order. Gives up after so many counts."""
    anchor = COMMON[0]
    base, left = await count(anchor), max_counts - 1
    found: set[str] = set()
    distinct = list(dict.fromkeys(candidates))
    batches = [distinct[at : at + _BATCH] for at in range(0, len(distinct), _BATCH)][::-1]
    while batches and left > 0 and len(found) < ENOUGH:
        batch, left = batches.pop(), left - 1
        if await count(" ".join([anchor, *batch])) == base + len(batch):
            found.update(batch)
        elif len(batch) > 1:
            middle = len(batch) // 2
            batches += [batch[middle:], batch[:middle]]
    return [word for word in distinct if word in found]


async def own_words(vocabulary: Vocabulary, window: int) -> list[str]:
    """Lower-case words that are tokens with a space in front, the commonest first."""
    ending = await vocabulary.tokens("a\n")
    if len(ending) < 2:
        return []
    line_feed = ending[-1]
    first, step, found = 0, min(_STEP, window // 4), dict[str, None]()
    while step and first < _IDS_READ and len(found) < ENOUGH:
        ids = [token for id in range(first, first + step) for token in (id, line_feed)]
        lines = (await vocabulary.text(ids)).split("\n")
        if lines == [""]:
            step //= 4  # the vocabulary may end somewhere in them
            continue
        first += step
        found |= {line[1:]: None for line in lines if line.startswith(" ") and _is_plain(line[1:])}
    return list(found)


def _is_plain(word: str) -> bool:
    return len(word) > 1 and word.isascii() and word.isalpha() and word.islower()


async def with_opening(words: Sequence[str], vocabulary: Vocabulary) -> list[str]:
    """The same with one in front that is a single token at the beginning of a text too, if one is near."""
    for at, word in enumerate(words[:_NEAR]):
        if len(await vocabulary.tokens(word)) == 1:
            return [word, *words[:at], *words[at + 1 :]]
    return list(words)


class FileVocabulary:
    """A ``tokenizer.json``. Implements Vocabulary."""

    def __init__(self, path: str) -> None:
        """Raises VocabularyError."""
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(path)
        except Exception as error:  # the library raises nothing more special
            raise VocabularyError(f"{path} cannot be read as a tokenizer.json: {error}.") from None

    async def tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    async def text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text
