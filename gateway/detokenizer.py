"""Token ids to text, one token at a time, without ever emitting broken UTF-8.

Pure; runs on the event loop. ``TokenTable`` maps an id to its bytes, computed once from
``tokenizer.json`` for the two families in use: byte-level BPE (SmolLM2, Llama 3, Tekken) and
SentencePiece-like (Llama 2, Mistral). ``Detokenizer`` joins the bytes: an incomplete character is
held until it is whole, bytes that can never be UTF-8 become U+FFFD. A character that is still
incomplete when a sequence ends is dropped, in streamed and in plain answers alike. The leading
space of a continuation is kept: it separates the answer from the prompt.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_WORD_BOUNDARY = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizerError(ValueError):
    """The tokenizer is of a kind that we cannot turn into text. The message is one plain sentence."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Bytes of every token id. ``skipped`` names the special tokens, whose bytes are empty."""

    pieces: tuple[bytes, ...]
    skipped: Mapping[int, str] = field(default_factory=dict)

    def piece(self, token_id: int, *, names_special: bool = False) -> bytes:
        """Bytes that the token adds to the text; none for unused ids, and for special ones unless named."""
        if names_special and token_id in self.skipped:
            return self.skipped[token_id].encode()
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    def showing(self, names: Collection[str]) -> TokenTable:
        """The same table, except that special tokens of these names are text."""
        shown = {token_id: name for token_id, name in self.skipped.items() if name in names}
        if not shown:
            return self
        pieces = list(self.pieces)
        for token_id, name in shown.items():
            pieces[token_id] = name.encode()
        skipped = {token_id: name for token_id, name in self.skipped.items() if token_id not in shown}
        return TokenTable(tuple(pieces), skipped)

    def label(self, token_id: int) -> tuple[str, bytes]:
        """How to show the token on its own: a printable string, and exact bytes."""
        raw = self.piece(token_id, names_special=True)
        return printable(raw), raw

    @property
    def longest_piece(self) -> int:
        return max(map(len, self.pieces), default=0)


def printable(raw: bytes) -> str:
    """Text of the bytes; those that are no whole character are written like ``\\xf0\\x9f``."""
    return raw.decode("utf-8", errors="backslashreplace")


class Detokenizer:
    """Incremental UTF-8 decoding of one sequence. ``names_special``: special tokens are text too."""

    __slots__ = ("_decoder", "_names_special", "_table", "num_pending_bytes")

    def __init__(self, table: TokenTable, *, names_special: bool = False) -> None:
        self._table = table
        self._names_special = names_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.num_pending_bytes = 0

    def push(self, token_id: int) -> str:
        """Text that became whole with this token; often empty inside a character.

        ``num_pending_bytes`` at the end wait for the rest of theirs.
        """
        piece = self._table.piece(token_id, names_special=self._names_special)
        if not self.num_pending_bytes and piece.isascii():
            return piece.decode()
        text = self._decoder.decode(piece)
        self.num_pending_bytes = len(self._decoder.getstate()[0])
        return text


# ---- reading tokenizer.json --------------------------------------------------------------------


def build_token_table(spec: Mapping[str, Any]) -> TokenTable:
    """Table for a parsed ``tokenizer.json``.

    Raises UnsupportedTokenizerError when its decoder is of neither supported family.
    """
    to_bytes = _piece_decoder(spec.get("decoder"))
    pieces = {token_id: to_bytes(token) for token, token_id in _vocabulary(spec).items()}
    skipped: dict[int, str] = {}
    for added in spec.get("added_tokens") or ():
        pieces[added["id"]] = b"" if added["special"] else added["content"].encode()
        if added["special"]:
            skipped[added["id"]] = added["content"]
    size = max(pieces, default=-1) + 1
    return TokenTable(tuple(pieces.get(i, b"") for i in range(size)), skipped)


def _vocabulary(spec: Mapping[str, Any]) -> dict[str, int]:
    vocab = spec.get("model", {}).get("vocab")
    if isinstance(vocab, dict):
        return vocab
    if isinstance(vocab, list):  # Unigram: pairs of token and score, the id is the position
        return {entry[0]: i for i, entry in enumerate(vocab)}
    raise UnsupportedTokenizerError("The tokenizer.json has no vocabulary that we can read.")


class _ByteLevelPieces:
    """Byte-level BPE writes each byte as one printable character, by a fixed table."""

    def __init__(self) -> None:
        self._bytes = {char: byte for byte, char in _byte_level_alphabet().items()}

    def __call__(self, token: str) -> bytes:
        try:
            return bytes([self._bytes[char] for char in token])
        except KeyError:
            return token.encode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class _SentencePieces:
    """SentencePiece writes a space as U+2581 and, with byte fallback, a byte as ``<0xE2>``."""

    space: str
    byte_fallback: bool

    def __call__(self, token: str) -> bytes:
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match.group(1), 16)])
        return token.replace(self.space, " ").encode("utf-8", errors="replace")


def _piece_decoder(decoder: Any) -> _ByteLevelPieces | _SentencePieces:
    steps = _decoder_steps(decoder)
    kinds = [step.get("type") for step in steps]
    known = {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
    unknown = sorted({str(kind) for kind in kinds} - known)
    if unknown:
        raise UnsupportedTokenizerError(f"The tokenizer's decoder {unknown[0]} is not supported.")
    if "ByteLevel" in kinds:
        return _ByteLevelPieces()
    space = next((mark for step in steps if (mark := _space_mark(step))), None)
    if space is None:
        raise UnsupportedTokenizerError(
            "The tokenizer's decoder is neither byte-level nor of the SentencePiece kind."
        )
    return _SentencePieces(space, "ByteFallback" in kinds)


def _decoder_steps(decoder: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(decoder, dict):
        raise UnsupportedTokenizerError("The tokenizer.json names no decoder, so ids have no text.")
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for inner in decoder.get("decoders", ()) for step in _decoder_steps(inner)]


def _space_mark(step: Mapping[str, Any]) -> str | None:
    """The character that stands for a space, if this step is the one that says so."""
    if step.get("type") == "Metaspace":
        return str(step.get("replacement") or _WORD_BOUNDARY)
    if step.get("type") != "Replace":
        return None
    if step.get("content") != " " or not isinstance(step.get("pattern"), dict):
        raise UnsupportedTokenizerError("The tokenizer's decoder replaces more than its space mark.")
    pattern = step["pattern"].get("String")
    return pattern if isinstance(pattern, str) else None


def _byte_level_alphabet() -> dict[int, str]:
    """Byte to character as GPT-2 defined it: printable Latin-1 stays, the rest moves past U+0100."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(256 + len(alphabet) - len(plain))
    return alphabet
