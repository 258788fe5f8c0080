"""Prompts: an exact number of tokens, shared where they should be and nowhere else."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from loadtest.prompts import Part, Prompts, Words, block_part

WORDS = Words(tuple(f"word{number}" for number in range(500)), verified=True)


def test_a_block_is_the_same_as_often_as_it_is_made() -> None:
    prompts = Prompts(WORDS, "salt")
    assert prompts.block(7, 64) == Prompts(WORDS, "salt").block(7, 64)
    assert len(prompts.block(7, 64).split()) == 64
    assert prompts.block(8, 64) != prompts.block(7, 64) != Prompts(WORDS, "other").block(7, 64)


def test_a_partial_block_begins_like_the_whole() -> None:
    prompts = Prompts(WORDS, "salt")
    assert prompts.block(7, 64).startswith(prompts.block(7, 20) + " ")


def test_a_text_is_its_opening_and_then_its_parts_until_there_are_enough() -> None:
    prompts = Prompts(WORDS, "salt")
    text = prompts.text(21, [block_part(1, 8), block_part(2, 8), Part("own", 99, is_shared=False)])
    assert text == " ".join([WORDS.opening, prompts.block(1, 8), prompts.block(2, 8), *text.split()[17:]])
    assert len(text.split()) == 21
    assert prompts.text(10, [block_part(1, 8), block_part(2, 8)]) == " ".join(
        [WORDS.opening, prompts.block(1, 8), prompts.block(2, 1)]
    )
    assert prompts.text(1, []) == WORDS.opening


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Knows "` tide`", with its space, as one token, and "tide" at the start of a text as more."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([" tide gate harbour lantern island window letter music" * 50], trainer)
    return made


def test_a_text_is_longer_than_its_words_by_what_a_probe_is(tokenizer: Tokenizer) -> None:
    """What the first word is to a tokenizer, standing after no space, is the template's cost."""

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    words = Words(("harbour", "gate", "lantern", "island", "window", "letter", "music"), verified=True)
    assert all(count(f" {word}") == 1 for word in words.words)
    cost = count(words.probe(9)) - 9
    assert cost == count(words.probe(30)) - 30 > 0
    prompts = Prompts(words, "salt")
    for num_tokens in (1, 2, 17, 100):
        assert count(prompts.text(num_tokens, [block_part(3, 40), Part("own", 99)])) == num_tokens + cost
