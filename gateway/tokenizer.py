"""Text to token ids, and the table for the way back.

``TextCodec.encode`` is called on offload threads only. It goes through ``encode_batch_fast`` because
that call releases the GIL while it works, where ``encode`` would hold it and stall the event loop
for as long as a long prompt takes. Imports no transformers: ``tokenizer.json`` is all it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from gateway.detokenizer import TokenTable, UnsupportedTokenizerError, build_token_table


@dataclass(frozen=True, slots=True)
class TextCodec:
    """A model's tokenizer. ``longest_piece`` is the most bytes that one token can stand for."""

    table: TokenTable
    longest_piece: int
    _tokenizer: Tokenizer

    @classmethod
    def load(cls, tokenizer_dir: str | Path) -> TextCodec:
        """Read ``tokenizer.json``; blocks for up to a second.

        Raises UnsupportedTokenizerError when it is missing, broken or of an unknown kind.
        """
        path = Path(tokenizer_dir) / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            spec = msgspec.json.decode(text)
            tokenizer = Tokenizer.from_str(text)
        except FileNotFoundError:
            raise UnsupportedTokenizerError(f"There is no tokenizer.json in {tokenizer_dir}.") from None
        except Exception as error:  # the tokenizers library raises bare Exception for a broken file
            raise UnsupportedTokenizerError(f"{path} cannot be read as a tokenizer: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        table = build_token_table(spec)
        names = max((len(name.encode()) for name in table.skipped.values()), default=0)
        return cls(table, max(table.longest_piece, names), tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; with special tokens as the tokenizer puts them around a prompt."""
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encodings[0].ids
