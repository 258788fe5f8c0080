"""What grammars allow, over both families of tokenizers; and states of sequences are only a cache."""

from __future__ import annotations

import gc
import random
import re
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np
import pytest
from msgspec.structs import replace

from engine.execution.grammars import (
    CompiledGrammar,
    GrammarError,
    GrammarMasks,
    TokenizerSource,
    compile_grammar,
    load_tokenizer,
)
from engine.grammar_room import Form
from engine.messages import Grammar, SamplingParams
from engine.schedule import SampleSpec
from tests.support.tiny_tokenizers import byte_level, save, sentence_pieces

VOCAB = 300  # of the model: more than either tokenizer has
NUMBER = Grammar("regex", "[0-9]+")
PHONE = Grammar("regex", "[0-9]{3}-[0-9]{2}")


class Family:
    """One tokenizer, a grammar engine on it, and the text of its tokens."""

    def __init__(self, tokenizer: object, directory: Path, stop_token_id: int) -> None:
        self.directory = save(tokenizer, directory)  # type: ignore[arg-type]
        self.decode = tokenizer.decode  # type: ignore[attr-defined]
        self.size = tokenizer.get_vocab_size()  # type: ignore[attr-defined]
        self.stop = stop_token_id
        self.library = load_tokenizer(TokenizerSource(self.directory, VOCAB, (stop_token_id,)))

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        return CompiledGrammar(compile_grammar(self.library, grammar), 0)

    def masks(self, grammar: Grammar, max_states: int = 8) -> GrammarMasks:
        compiled = self.compile(grammar)
        return GrammarMasks({Form(grammar): compiled}.get, VOCAB, max_states)


@pytest.fixture(scope="module", params=["byte_level", "sentence_pieces"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "byte_level":
        return Family(byte_level(), directory, 266)
    return Family(sentence_pieces(), directory, 2)


def ask(grammar: Grammar | None, output: Sequence[int]) -> SampleSpec:
    params = SamplingParams(max_tokens=100, seed=0, grammar=grammar)
    return SampleSpec(params, (0,), 1 + len(output), (1,), output, ())


def walk(family: Family, masks: GrammarMasks, grammar: Grammar, seed: int, limit: int = 200) -> list[int]:
    """Tokens drawn evenly from what is allowed, up to the end of the text."""
    output: list[int] = []
    numbers = random.Random(seed)
    while len(output) < limit:
        mask = masks.mask(f"s{seed}", ask(grammar, output))
        assert mask is not None and mask.shape == (VOCAB,)
        token = numbers.choice(np.flatnonzero(mask).tolist())
        if token == family.stop:
            return output
        output.append(token)
    raise AssertionError(f"no end: {family.decode(output)}")


def test_a_text_keeps_to_its_regex_and_ends(family: Family) -> None:
    masks = family.masks(PHONE)
    for seed in range(20):
        assert re.fullmatch("[0-9]{3}-[0-9]{2}", family.decode(walk(family, masks, PHONE, seed)))


def test_texts_of_several_bytes_a_character_are_whole(family: Family) -> None:
    grammar = Grammar("regex", "[é漢😀]{3}")
    masks = family.masks(grammar)
    for seed in range(10):
        assert re.fullmatch("[é漢😀]{3}", family.decode(walk(family, masks, grammar, seed)))


def test_all_that_may_follow_a_whole_text_is_its_end(family: Family) -> None:
    masks = family.masks(PHONE)
    output = walk(family, masks, PHONE, 0)
    mask = masks.mask("s0", ask(PHONE, output))
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [family.stop]


def test_padding_and_special_tokens_are_not_allowed(family: Family) -> None:
    grammar = Grammar("regex", "(?s:.*)")
    mask = family.masks(grammar).mask("s", ask(grammar, ()))
    assert mask is not None
    assert mask[family.stop]
    assert not mask[family.size :].any()
    assert mask.sum() < family.size


def test_no_grammar_no_mask(family: Family) -> None:
    assert family.masks(PHONE).mask("s", ask(None, ())) is None


def test_states_are_a_cache(family: Family) -> None:
    """Masks are the same when a sequence is taken up late, goes back, forks, or has been forgotten."""
    masks = family.masks(PHONE)
    output = walk(family, masks, PHONE, 3)
    expected = [masks.mask("whole", ask(PHONE, output[:k])) for k in range(len(output) + 1)]
    other = family.masks(PHONE, max_states=2)
    orders = [range(len(output) + 1), reversed(range(len(output) + 1)), (5, 0, 5, 2, 4)]
    for order in orders:
        for k in order:
            if k > len(output):
                continue
            for name in ("a", "b", "c"):  # one more than are kept
                found = other.mask(name, ask(PHONE, output[:k]))
                assert found is not None and np.array_equal(found, expected[k])
    changed = [*output[:2], *walk(family, masks, PHONE, 4)[2:]]
    for k in range(len(changed)):
        found = other.mask("a", ask(PHONE, changed[:k]))
        assert found is not None and found.any()


class _Matcher:
    """Stands for the library's, whose copies cannot be watched."""

    alive: ClassVar[weakref.WeakSet[_Matcher]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)

    def deep_copy(self) -> _Matcher:
        return _Matcher()

    def compute_bitmask(self) -> bytes:
        return bytes([255] * (VOCAB // 8 + 1))

    def consume_tokens(self, tokens: Sequence[int]) -> bool:
        return True

    def is_error(self) -> bool:
        return False


def test_nothing_is_left_of_the_grammar_of_a_request_that_is_over() -> None:
    known: WeakValueDictionary[Form, CompiledGrammar] = WeakValueDictionary()
    masks = GrammarMasks(known.get, VOCAB, max_states=8)
    other = known[Form(NUMBER)] = CompiledGrammar(_Matcher(), 0)  # type: ignore[arg-type]
    held = known[Form(PHONE)] = CompiledGrammar(_Matcher(), 0)  # type: ignore[arg-type]
    for name in ("r", "r#1", "r#2"):
        assert masks.mask(name, ask(PHONE, ())) is not None
    for name in ("r2", "rr#1"):
        assert masks.mask(name, ask(NUMBER, ())) is not None
    assert len(_Matcher.alive) == 2 + 5
    del held
    masks.forget("r")
    gc.collect()
    assert list(known) == [Form(NUMBER)]
    assert len(_Matcher.alive) == 1 + 2
    masks.forget("never heard of")
    masks.forget("r2")
    masks.forget("rr")
    assert [*_Matcher.alive] == [other.matcher]


def test_only_what_was_compiled_for_the_same_salt_is_used() -> None:
    ours = CompiledGrammar(_Matcher(), 0)  # type: ignore[arg-type]
    masks = GrammarMasks({Form(PHONE, b"ours"): ours}.get, VOCAB, max_states=8)
    assert masks.mask("r", replace(ask(PHONE, ()), cache_salt=b"ours")) is not None
    with pytest.raises(AssertionError):
        masks.mask("s", replace(ask(PHONE, ()), cache_salt=b"theirs"))


def test_two_sequences_of_one_grammar_do_not_disturb_each_other(family: Family) -> None:
    masks = family.masks(PHONE)
    texts = [family.decode(walk(family, masks, PHONE, seed)) for seed in range(6)]
    assert len(set(texts)) > 1
    shared = family.masks(PHONE)
    again = [family.decode(walk(family, shared, PHONE, seed)) for seed in reversed(range(6))]
    assert again[::-1] == texts


def test_json_is_on_one_line(family: Family) -> None:
    schema = '{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x"]}},"required":["a","b"]}'
    grammar = Grammar("json_schema", schema[:-1] + ',"additionalProperties":false}')
    masks = family.masks(grammar)
    layouts = set()
    for seed in range(12):
        text = family.decode(walk(family, masks, grammar, seed, limit=2000))
        match = re.fullmatch(r'\{"a":( ?)-?\d+,( ?)"b":( ?)"x"\}', text)
        assert match, text
        layouts.add(match.groups())
    assert len(layouts) > 1


def test_tokens_that_the_grammar_does_not_allow_end_it(family: Family) -> None:
    masks = family.masks(PHONE)
    with pytest.raises(GrammarError):
        masks.mask("s", ask(PHONE, [family.stop, family.stop, 70]))


def test_a_model_with_fewer_tokens_than_its_tokenizer(family: Family) -> None:
    library = load_tokenizer(TokenizerSource(family.directory, 100, (family.stop,)))
    grammar = Grammar("regex", "(?s:.*)")
    compiled = CompiledGrammar(compile_grammar(library, grammar), 0)
    mask = GrammarMasks({Form(grammar): compiled}.get, 100, 8).mask("s", ask(grammar, ()))
    assert mask is not None and mask.shape == (100,) and mask.any()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(a"),
        ("regex", "(?=a)b"),
        ("json_schema", '{"type":"strin"}'),
        ("json_schema", '{"$ref":"http://127.0.0.1:1/s.json"}'),
        ("json_schema", '{"$ref":"file:///etc/hostname"}'),
        ("json_schema", '{"$ref":"#"}'),
        ("json_schema", '{"not":{}}'),
        ("lark", "start: start"),
        ("lark", "start: nothing"),
        ("lark", ""),
    ],
)
def test_what_cannot_be_compiled(family: Family, kind: str, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        family.compile(Grammar(kind, text))  # type: ignore[arg-type]
    assert str(caught.value).endswith(".")
    assert "127.0.0.1" not in str(caught.value)


def test_a_model_without_what_it_takes(family: Family, tmp_path: Path) -> None:
    for source in (
        TokenizerSource(family.directory, VOCAB, ()),
        TokenizerSource(family.directory, VOCAB, (VOCAB,)),
        TokenizerSource(str(tmp_path), VOCAB, (2,)),
    ):
        with pytest.raises(GrammarError):
            load_tokenizer(source)
