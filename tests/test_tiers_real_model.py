"""Greedy text in deterministic mode is the same with any pool size, tier, policy, fault and preemption.

A model computes; the movers are scripted: copies are early, late and out of order, some fail, and every
block is verified on every move. The oracle is the same model with a pool that holds everything.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine.execution.grammars import (
    CompiledGrammar,
    GrammarMasks,
    TokenizerSource,
    compile_grammar,
    load_tokenizer,
)
from engine.execution.runner import LoadedRunner
from engine.grammar_room import Form
from engine.messages import Grammar
from tests.support.real_backend import RealBackend, load_deterministic
from tests.support.scripted_compiler import ScriptedCompiler
from tests.support.small_engine import SmallEngine
from tests.support.tiny_models import make_model
from tests.support.tiny_tokenizers import byte_level, save
from tiering.movers.base import Mischief
from tiering.policies.registry import EVICTION, RESTORE, WRITE

SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
NUM_REQUESTS = 64
MAX_TOKENS = 32 if SLOW else 10
SEQUENCE_BLOCKS = 6  # of 16 tokens: prompts of up to 60, answers of up to 32
ALL_BLOCKS = NUM_REQUESTS * SEQUENCE_BLOCKS + 64
DEFAULTS = {"eviction": "lru", "write": "back", "restore": "adaptive"}
SINGLY = [
    DEFAULTS,
    *({**DEFAULTS, "eviction": name} for name in EVICTION if name != "lru"),
    *({**DEFAULTS, "write": name} for name in WRITE if name != "back"),
    *({**DEFAULTS, "restore": name} for name in RESTORE if name != "adaptive"),
]
PRODUCT = [(e, w, r) for e in EVICTION for w in WRITE for r in RESTORE]


def prompts(count: int, vocab_size: int, longest: int = 60) -> list[list[int]]:
    """Some begin alike, as conversations with one system prompt do."""
    random_numbers = random.Random(7)
    draw = lambda n: [random_numbers.randrange(3, min(vocab_size, 20_000)) for _ in range(n)]  # noqa: E731
    shared = draw(36)
    return [
        (shared[: random_numbers.choice((0, 16, 36))] + draw(longest))[: random_numbers.randint(1, longest)]
        for _ in range(count)
    ]


def generate(engine: SmallEngine, all_prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    for index, prompt in enumerate(all_prompts):
        engine.add(f"r{index}", prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    engine.run(max_steps=100_000)
    engine.assert_idle()
    assert engine.errors == {}
    return [engine.tokens[f"r{index}"] for index in range(len(all_prompts))]


class Bench:
    """One loaded model, and what it says when it has all the room it wants."""

    def __init__(self, loaded: LoadedRunner, directory: Path) -> None:
        self.loaded = loaded
        self._directory = directory / "blocks"
        self._backend: RealBackend | None = None
        self._expected: dict[tuple[int, int], list[list[int]]] = {}

    def expected(self, count: int, max_tokens: int) -> list[list[int]]:
        if (count, max_tokens) not in self._expected:
            engine = self.engine(num_blocks=ALL_BLOCKS, host_blocks=0, disk_blocks=0)
            wanted = prompts(count, self.loaded.info.vocab_size)
            self._expected[count, max_tokens] = generate(engine, wanted, max_tokens)
        return self._expected[count, max_tokens]

    def engine(
        self, *, num_blocks: int, host_blocks: int = 40, disk_blocks: int = 200, **options: object
    ) -> SmallEngine:
        """An engine on the model's one pool; it ends the engine before it, whose files go with it."""
        self.close()
        self._backend = backend = RealBackend(self.loaded, host_blocks, disk_blocks, self._directory)
        return SmallEngine(
            num_blocks=num_blocks,
            block_size=16,
            host_blocks=host_blocks,
            disk_blocks=disk_blocks,
            max_model_len=SEQUENCE_BLOCKS * 16,
            backend=backend,
            **{"max_num_seqs": NUM_REQUESTS, "max_num_batched_tokens": 128, **options},  # type: ignore[arg-type]
        )

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
        shutil.rmtree(self._directory, ignore_errors=True)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(load_deterministic("", ALL_BLOCKS), tmp_path_factory.mktemp("real"))
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("tiny-model")
    make_model().save_pretrained(directory)
    save(byte_level(), directory)
    bench = Bench(
        load_deterministic(str(directory), ALL_BLOCKS, dtype="float32"), tmp_path_factory.mktemp("tiny")
    )
    yield bench
    bench.close()


def tight(bench: Bench, policies: dict[str, str], failure_rate: float, seed: int = 0) -> SmallEngine:
    """A device pool of twice one sequence, and copies that come as they like."""
    mischief = Mischief(seed=seed, max_delay_polls=4, failure_rate=failure_rate, shuffles=True)
    return bench.engine(num_blocks=2 * SEQUENCE_BLOCKS, mischief=mischief, **policies)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "policies", SINGLY if SLOW else SINGLY[:1], ids=lambda policies: "-".join(policies.values())
)
@pytest.mark.parametrize("failure_rate", [0.0, 0.05])
def test_64_at_once_on_the_real_model(real: Bench, policies: dict[str, str], failure_rate: float) -> None:
    expected = real.expected(NUM_REQUESTS, MAX_TOKENS)
    engine = tight(real, policies, failure_rate)
    wanted = prompts(NUM_REQUESTS, real.loaded.info.vocab_size)
    assert generate(engine, wanted, MAX_TOKENS) == expected
    assert sum(engine.scheduler.totals.preemptions.values()) > 0
    if policies["restore"] != "recompute":
        assert engine.transfers.totals["swap_in"].num_done > 0
    assert all(totals.num_corrupt == 0 for totals in engine.transfers.totals.values())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("restore", ["swap", "overlap", "recompute"])
def test_preemption_at_every_step_of_a_short_run(real: Bench, restore: str) -> None:
    """After each step of the run, in a run of its own: each request that runs, and all of them."""
    expected = real.expected(4, 6)
    step, victims = 1, 1
    while victims:
        victims, choice = 0, 0
        while choice <= victims:
            engine = begin_short_run(real, restore, step)
            running = list(engine.scheduler.queues.running.values())
            victims = len(running)
            for victim in running[choice : choice + 1] or running:
                engine.scheduler.preempt(victim)
            engine.run()
            assert [engine.tokens[f"r{index}"] for index in range(4)] == expected
            choice += 1
        step += 1
    assert step > 10


def begin_short_run(bench: Bench, restore: str, num_steps: int) -> SmallEngine:
    engine = bench.engine(num_blocks=ALL_BLOCKS, restore=restore, max_num_seqs=8, max_num_batched_tokens=24)
    for index, prompt in enumerate(prompts(4, bench.loaded.info.vocab_size)):
        engine.add(f"r{index}", prompt, max_tokens=6, temperature=0.0, ignore_eos=True)
    for _ in range(num_steps):
        engine.step()
    return engine


def samples_alone(bench: Bench, prompt: Sequence[int], n: int, **sampling: object) -> list[list[int]]:
    """What each sample's own request gets, sent one by one with the seed that the sample has."""
    engine = bench.engine(num_blocks=ALL_BLOCKS, max_num_seqs=8)
    for index in range(n):
        engine.add(f"r{index}", prompt, seed=1234 + index, ignore_eos=True, **sampling)  # type: ignore[arg-type]
        engine.run()
    return [engine.tokens[f"r{index}"] for index in range(n)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("restore", ["swap", "recompute", "overlap"])
def test_samples_are_those_of_requests_sent_one_by_one(real: Bench, restore: str) -> None:
    """Also when the group is preempted, swapped or lost, at any step of its life."""
    sampling = {"max_tokens": 14, "temperature": 1.0, "top_p": 0.95}
    prompt = prompts(4, real.loaded.info.vocab_size)[1][:37]
    expected = samples_alone(real, prompt, 4, **sampling)
    assert len({tuple(tokens) for tokens in expected}) == 4
    for step in range(0, 16, 1 if SLOW else 5):
        mischief = Mischief(seed=step, max_delay_polls=3, failure_rate=0.05, shuffles=True)
        engine = real.engine(
            num_blocks=ALL_BLOCKS,
            restore=restore,
            mischief=mischief,
            max_num_seqs=8,
            max_num_batched_tokens=24,
        )
        engine.add("g", prompt, n=4, seed=1234, ignore_eos=True, **sampling)  # type: ignore[arg-type]
        for _ in range(step):
            engine.step()
        if "g" in engine.scheduler.queues.running:
            engine.scheduler.preempt(engine.scheduler.queues.running["g"])
        engine.run()
        engine.assert_idle()
        assert [engine.sample("g", index) for index in range(4)] == expected


def masked_answers(bench: Bench, grammar: Grammar, stop: int, **options: object) -> list[list[int]]:
    """What eight requests drew within a grammar, one of them three times, up to the ends of their texts."""
    info = bench.loaded.info
    tokenizer = load_tokenizer(TokenizerSource(info.tokenizer_dir, info.vocab_size, (stop,)))
    compiled = {Form(grammar): CompiledGrammar(compile_grammar(tokenizer, grammar), 0)}
    compiler = ScriptedCompiler()
    compiler.known.update(compiled)
    bench.loaded.runner.masks = GrammarMasks(compiled.get, info.vocab_size, max_states=4)
    engine = bench.engine(compiler=compiler, stop_token_ids=(stop,), **options)  # type: ignore[arg-type]
    counts = [3 if index == 3 else 1 for index in range(8)]
    sampling = {"temperature": 1.0, "max_tokens": 40, "grammar": grammar}
    for index, prompt in enumerate(prompts(8, info.vocab_size)):
        engine.add(f"r{index}", prompt, seed=index, n=counts[index], **sampling)  # type: ignore[arg-type]
    engine.run(max_steps=100_000)
    engine.assert_idle()
    assert engine.errors == {}
    if engine.blocks.num_blocks < ALL_BLOCKS:
        assert sum(engine.scheduler.totals.preemptions.values()) > 0
    return [engine.sample(f"r{index}", which) for index in range(8) for which in range(counts[index])]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("restore", ["swap", "overlap", "recompute"])
def test_grammars_are_kept_to_over_preemption_swap_and_recompute(tiny: Bench, restore: str) -> None:
    """Also when the states of their matchers are forgotten meanwhile; and the text is the same."""
    grammar, stop = Grammar("regex", "[A-Z]{2,9}( [A-Z]{2,9}){2}"), 3
    expected = masked_answers(tiny, grammar, stop, num_blocks=ALL_BLOCKS)
    for tokens in expected:
        text = byte_level().decode(tokens[:-1])
        assert tokens[-1] == stop and re.fullmatch(grammar.text, text), text
    mischief = Mischief(seed=1, max_delay_polls=4, failure_rate=0.05, shuffles=True)
    options = {"num_blocks": 2 * SEQUENCE_BLOCKS, "mischief": mischief, "restore": restore}
    assert masked_answers(tiny, grammar, stop, **options) == expected


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("eviction", "write", "restore"), PRODUCT)
def test_every_combination_of_policies_on_a_tiny_model(
    tiny: Bench, eviction: str, write: str, restore: str
) -> None:
    expected = tiny.expected(24, 12)
    for failure_rate in (0.0, 0.05):
        engine = tight(tiny, {"eviction": eviction, "write": write, "restore": restore}, failure_rate)
        wanted = prompts(24, tiny.loaded.info.vocab_size)
        assert generate(engine, wanted, 12) == expected
        assert sum(engine.scheduler.totals.preemptions.values()) > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("restore", ["swap", "recompute", "overlap"])
def test_log_probabilities_of_prompts_are_the_same_bits(tiny: Bench, restore: str) -> None:
    """With all the room there is, and preempted in mid-prompt; beside others, and over other chunks."""
    found = []
    roomy = tiny.engine(num_blocks=ALL_BLOCKS, host_blocks=0, disk_blocks=0)
    narrow = tight(tiny, {**DEFAULTS, "restore": restore}, 0.05)
    for engine in (roomy, narrow):
        for index, prompt in enumerate(prompts(24, tiny.loaded.info.vocab_size)):
            engine.add(f"r{index}", prompt, max_tokens=index % 12, temperature=0.0, prompt_logprobs=3)
        for _ in range(3):
            engine.step()
            half = [g for g in engine.scheduler.queues.running.values() if g.scoring and g.scoring.num_found]
            for group in half if engine is narrow else ():
                engine.scheduler.preempt(group)
        engine.run(max_steps=100_000)
        engine.assert_idle()
        found.append(engine.prompt_logprobs)
    assert len(found[0]) == 24
    assert found[0] == found[1]
    assert sum(narrow.scheduler.totals.preemptions.values()) > 0
