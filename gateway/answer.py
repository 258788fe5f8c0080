"""The text of one answer as it grows: detokenizer, stop strings and log probabilities in step.

Pure; runs on the event loop. With log probabilities, text is shown in whole tokens only, so that in
every piece the joined token texts equal the piece's text, and the joined token bytes decode to it.
That holds for the last piece too: the token in which a stop string begins is cut at that place, and
tokens of which nothing is shown are left out, unless every token is to be told.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.messages import TokenLogprobs
from gateway.detokenizer import Detokenizer, TokenTable
from gateway.stop_matcher import StopMatcher


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token as shown in log probabilities. ``text`` is what it adds to the answer: nothing for
    a token inside a character, the whole character for the token that completes it."""

    token_id: int
    raw: bytes
    text: str
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A stretch of the tool call with this number; its first has the ``name`` and the ``call_id``.

    It comes behind the first ``text_before`` characters of the text of its piece.
    """

    index: int
    arguments: str = ""
    name: str = ""
    call_id: str = ""
    text_before: int = 0


class Piece(msgspec.Struct, frozen=True):
    """A stretch of the answer. ``entries`` is empty unless log probabilities were asked for.

    ``thought`` and ``calls`` are no part of the text; there are none unless they are to be told from it.
    """

    text: str = ""
    entries: tuple[TokenEntry, ...] = ()
    thought: str = ""
    calls: tuple[CallPiece, ...] = ()

    @property
    def is_plain(self) -> bool:
        """There is nothing but text in it."""
        return not (self.entries or self.thought or self.calls)

    def __bool__(self) -> bool:
        return bool(self.text or self.entries or self.thought or self.calls)


@dataclass(frozen=True, slots=True)
class _OpenToken:
    entry: TokenEntry
    num_pending_bytes: int


class AnswerText:
    """Takes token ids, gives pieces. ``stopped`` tells that a stop string was found.

    It is no part of the text unless ``keeps_stop``. ``names_special``: special tokens are shown by name.
    ``tells_all``: there is an entry for every token that no stop string cut off, the one that ended the
    sequence and those of which nothing is shown included.
    """

    __slots__ = (
        "_detokenizer", "_matcher", "_min_tokens", "_names_special", "_num_tokens", "_open", "_ready",
        "_table", "_tells_all", "stopped",
    )  # fmt: skip

    def __init__(
        self,
        table: TokenTable,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        keeps_stop: bool = False,
        names_special: bool = False,
        tells_all: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(table, names_special=names_special)
        self._table = table
        self._names_special = names_special
        self._tells_all = tells_all
        self._matcher = StopMatcher(stops, keeps_match=keeps_stop) if stops else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._ready: list[str] = []
        self._open: list[_OpenToken] = []
        self.stopped = False

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Take the next token. The first ``min_tokens`` are not searched for stop strings."""
        assert not self.stopped
        self._num_tokens += 1
        text = self._detokenizer.push(token_id)
        if logprobs is not None:
            raw = self._table.piece(token_id, names_special=self._names_special)
            entry = TokenEntry(token_id, raw, text, logprobs)
            self._open.append(_OpenToken(entry, self._detokenizer.num_pending_bytes))
        if self._matcher is not None and self._num_tokens > self._min_tokens:
            text = self._matcher.push(text)
            self.stopped = self._matcher.matched is not None
        if text:
            self._ready.append(text)

    def end(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Take the token that ended the sequence, which is no text."""
        if self._tells_all and logprobs is not None:
            self._open.append(_OpenToken(TokenEntry(token_id, b"", "", logprobs), 0))

    def take(self) -> Piece:
        """What can be shown now."""
        if not self._open:
            return Piece(self._take_ready())
        count = self._num_whole_tokens()
        if count == 0:
            return Piece()
        entries = tuple(token.entry for token in self._open[:count])
        del self._open[:count]
        text = self._take_ready()
        size = sum(len(entry.text) for entry in entries)
        if size < len(text):
            self._ready.append(text[size:])
        return Piece(text[:size], entries)

    def finish(self) -> Piece:
        """The last piece: all the text that is left, cut at the stop string if one was found."""
        if self._matcher is not None:
            self._ready.append(self._matcher.flush())
        text = self._take_ready()
        return Piece(text, self._cut_entries(text))

    def _take_ready(self) -> str:
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _num_whole_tokens(self) -> int:
        """How many open tokens lie within the ready text, up to one that ends a character.

        One without text waits for what comes after it: before a stop string it is left out.
        """
        room = sum(map(len, self._ready))
        count = 0
        for i, token in enumerate(self._open, start=1):
            room -= len(token.entry.text)
            if room < 0:
                break
            if token.entry.text and token.num_pending_bytes == 0:
                count = i
        return count

    def _cut_entries(self, text: str) -> tuple[TokenEntry, ...]:
        raw = b"".join(token.entry.raw for token in self._open)
        kept_bytes = num_bytes_of(raw, len(text))
        kept_chars = len(text)
        entries = []
        for token in self._open:
            entry = token.entry
            cut = TokenEntry(entry.token_id, entry.raw[:kept_bytes], entry.text[:kept_chars], entry.logprobs)
            kept_bytes -= len(cut.raw)
            kept_chars -= len(cut.text)
            is_hidden = not (cut.raw or cut.text)
            if is_hidden and ((entry.raw and not self._tells_all) or (self.stopped and not kept_chars)):
                break
            entries.append(cut)
        self._open.clear()
        return tuple(entries)


def num_bytes_of(raw: bytes, num_chars: int) -> int:
    """Length of the part of ``raw`` that makes up its first ``num_chars`` characters.

    Counted through the decoder because invalid bytes become one character each or several together.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    seen = 0
    for i in range(len(raw)):
        if seen == num_chars:
            return i - len(decoder.getstate()[0])
        seen += len(decoder.decode(raw[i : i + 1]))
        if seen > num_chars:  # this byte showed the ones before it to be invalid, and is itself a character
            return i
    return len(raw) - len(decoder.getstate()[0])
