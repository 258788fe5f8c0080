"""Grammars compiled by llguidance, and what each sequence's grammar allows it next.

``compile_grammar`` runs on the compile threads and in the trial process; ``GrammarMasks`` on the step thread.
States of sequences are a cache: one that is missing, or does not fit the tokens so far, is rebuilt from them.
So nothing of a grammar has to survive a preemption, a swap or a fork, and nothing survives its request.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.grammar_errors import GONE_ASTRAY, NO_END, NO_TOKENIZER, explain
from engine.grammar_room import Form
from engine.messages import Grammar
from engine.schedule import SampleSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Mask = npt.NDArray[np.bool_]

STACK_BYTES = (
    256 * 2**20
)  # the compiler recurses as deep as a schema's references go; only what it uses is taken
# Of one step of one sequence, about 20 ms; of all sequences with the same grammar, about 100 MiB.
_LIMITS = LLParserLimits(max_items_in_row=10_000, max_lexer_states=50_000, verbose_errors=False)
# JSON on one line. Were white space free, a small model could go on with it for ever.
_JSON_LAYOUT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}


class GrammarError(Exception):
    """A grammar cannot be used, or followed any further. The message is one plain sentence for its sender."""


class TokenizerSource(msgspec.Struct, frozen=True):
    """What a grammar must know of the model's tokens; ids from the tokenizer's last up to ``vocab_size`` are
    padding, which no grammar allows."""

    directory: str
    vocab_size: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CompiledGrammar:
    """``matcher`` has consumed nothing and never will; ``num_bytes`` is what all of it takes, about."""

    matcher: LLMatcher
    num_bytes: int


def load_tokenizer(source: TokenizerSource) -> LLTokenizer:
    """Build the tables of all tokens' bytes: a fraction of a second, some 40 MiB. Raises GrammarError."""
    if not source.stop_token_ids:
        raise GrammarError(NO_END)
    path = str(Path(source.directory) / "tokenizer.json")
    for vocab_size in (source.vocab_size, None):  # None: a tokenizer may know more tokens than its model
        with contextlib.suppress(ValueError, OSError):
            return LLTokenizer(path, n_vocab=vocab_size, eos_token=list(source.stop_token_ids))
    raise GrammarError(NO_TOKENIZER)


def compile_grammar(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """Needs a stack of ``STACK_BYTES``. Releases the interpreter's lock. Raises GrammarError."""
    matcher = LLMatcher(tokenizer, _in_the_library(grammar), log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        first = matcher.deep_copy()  # shows whether anything can come at all, and warms the lexer they share
        first.compute_bitmask()
        if not first.is_error():
            return matcher
        matcher = first
    raise GrammarError(explain(grammar.kind, matcher.get_error()))


def _in_the_library(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.text, overrides=_JSON_LAYOUT)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)


@dataclass(slots=True)
class _State:
    """A matcher, and the tokens that it has consumed. It keeps what is compiled of ``grammar`` in memory."""

    grammar: Grammar
    matcher: LLMatcher
    token_ids: list[int]


class GrammarMasks:
    """``find`` gives the compiled form of a grammar, which whoever queued the request holds on to.

    Keeps the states of the ``max_states`` sequences that were asked for last, until their requests are over.
    """

    def __init__(
        self, find: Callable[[Form], CompiledGrammar | None], vocab_size: int, max_states: int
    ) -> None:
        self._find = find
        self._vocab_size = vocab_size
        self._max_states = max_states
        self._states: OrderedDict[str, _State] = OrderedDict()

    def mask(self, sequence_id: str, spec: SampleSpec) -> Mask | None:
        """Which tokens ``[V]`` may come next, at least one; None if all may. Raises GrammarError."""
        if spec.params.grammar is None:
            return None
        form = Form(spec.params.grammar, spec.cache_salt)
        state = self._advanced(sequence_id, form, list(spec.output_token_ids))
        packed = state.matcher.compute_bitmask()
        bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=self._vocab_size, bitorder="little")
        if state.matcher.is_error() or not bits.any():
            del self._states[sequence_id]
            raise GrammarError(GONE_ASTRAY)
        return bits.view(np.bool_)

    def forget(self, request_id: str) -> None:
        """The request is over: drop the states of its sequences."""
        for sequence_id in [name for name in self._states if name.partition("#")[0] == request_id]:
            del self._states[sequence_id]

    def _advanced(self, sequence_id: str, form: Form, token_ids: list[int]) -> _State:
        state = self._states.get(sequence_id)
        if (
            state is None
            or state.grammar != form.grammar
            or state.token_ids != token_ids[: len(state.token_ids)]
        ):
            compiled = self._find(form)
            assert compiled is not None, "the grammar of a running request is held"
            state = _State(form.grammar, compiled.matcher.deep_copy(), [])
            self._states[sequence_id] = state
        self._states.move_to_end(sequence_id)
        new = token_ids[len(state.token_ids) :]
        if new and not state.matcher.consume_tokens(new):
            del self._states[sequence_id]
            raise GrammarError(GONE_ASTRAY)
        state.token_ids = token_ids
        if len(self._states) > self._max_states:
            self._states.popitem(last=False)
        return state
