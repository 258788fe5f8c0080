"""Small tokenizers of the two supported families, written as ``tokenizer.json`` files."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from gateway.detokenizer import _byte_level_alphabet

WORDS = ("Hello", " world", "DEF", "HI", "the", " cat", "\u00e9", "\u6f22", "abc")


def byte_level() -> Tokenizer:
    """256 single bytes (their ids are the byte values), some words, two special added tokens and a
    plain one. No merges, so that text encodes to its bytes and word ids are for scripts only."""
    alphabet = _byte_level_alphabet()
    vocab = {char: byte for byte, char in alphabet.items()}
    for word in WORDS:
        vocab.setdefault("".join(alphabet[byte] for byte in word.encode()), len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def sentence_pieces() -> Tokenizer:
    """In the manner of Llama 2: U+2581 for spaces, byte fallback, a start token on every prompt."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in ("\u2581", "\u2581Hello", "\u2581world", "a", "b", "c", "\u00e9", "!"):
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path) -> str:
    tokenizer.save(str(directory / "tokenizer.json"))
    return str(directory)
