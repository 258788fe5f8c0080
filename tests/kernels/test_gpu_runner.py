"""The GPU's runner on CPU tensors: token by token what the plain one gives, whatever a plan may be.

Kernels are interpreted. Work that is called again stands in for graphs (``tests.support.repeated_graphs``).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.reference import ReferenceAttention
from engine.execution.gpu_runner import GpuRunner
from engine.execution.grammars import GrammarError
from engine.execution.model_runner import ModelRunner
from engine.execution.sampler import sample
from engine.execution.step_buffers import StepLimits
from engine.loading.checkpoint import Checkpoint, open_checkpoint
from engine.messages import Grammar, SamplingParams
from engine.models.layers import TorchOps
from engine.models.llama import LlamaModel
from engine.schedule import Executor, SampleSpec, ScheduledChunk, SchedulerOutput, StepOutput
from tests.support.gpu_runners import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    WINDOW,
    attention_shape,
    make_whole,
    new_model,
    new_pool,
    repeat_for_graphs,
)
from tests.support.random_lives import Lives
from tests.support.real_backend import RealBackend, load_deterministic
from tests.support.small_engine import SmallEngine
from tests.support.tiny_models import make_model, oracle_greedy, random_tokens
from tests.support.tiny_tokenizers import byte_level, save
from tiering.movers.base import Mischief
from tiering.types import BlockCopy, BlockId

SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
LIMITS = StepLimits(max_num_seqs=6, max_num_rows=64, max_model_len=WINDOW)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_model(num_hidden_layers=1, max_position_embeddings=WINDOW).save_pretrained(path)
    save(byte_level(), path)
    return path


@pytest.fixture(scope="module")
def checkpoint(directory: Path) -> Checkpoint:
    return open_checkpoint(str(directory), "auto", 0)


def draw_like_torch(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor,
    min_p: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The other sampler, asked by columns: its tokens can be compared with those of the plain runner."""
    columns = (temperature, top_k, top_p, min_p, seeds, positions)
    specs = [
        SampleSpec(
            SamplingParams(max_tokens=1, seed=0, temperature=t, top_k=k, top_p=p, min_p=m),
            (seed % 2**64,), position, (), (), (),
        )
        for t, k, p, m, seed, position in zip(*(column.tolist() for column in columns), strict=True)
    ]  # fmt: skip
    drawn = sample(logits, specs)
    return torch.tensor([tokens[0].token_id if tokens else -1 for tokens in drawn])


class Twins:
    """One model over torch's attention in both runners; graphs, if there are any, stand in for real ones."""

    def __init__(self, checkpoint: Checkpoint, *, graphs: bool) -> None:
        ops = TorchOps(torch.float32, deterministic=True)
        shape = attention_shape(checkpoint)
        self.pools = (new_pool(checkpoint), new_pool(checkpoint))
        models = [new_model(checkpoint, ReferenceAttention(pool, shape), ops) for pool in self.pools]
        self.plain = ModelRunner(models[0], self.pools[0], BLOCK_SIZE)
        self.gpu = GpuRunner(models[1], self.pools[1], BLOCK_SIZE, LIMITS, draw_like_torch)
        self.recorder = repeat_for_graphs(self.gpu, is_strict=False) if graphs else None

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """What both answer."""
        expected, found = self.plain.execute(plan), self.gpu.execute(plan)
        assert found == expected
        assert torch.equal(*(pool.nan_to_num(7.0) for pool in self.pools))
        return found


def ask(position: int, *seeds: int, output: Sequence[int] = (), **params: object) -> SampleSpec:
    made = SamplingParams(**{"max_tokens": 9, "seed": 0, "temperature": 0.0, **params})  # type: ignore[arg-type]
    return SampleSpec(made, seeds or (0,), position, (1, 2), output, ())


def plan(*chunks: ScheduledChunk, copies: tuple[BlockCopy, ...] = ()) -> SchedulerOutput:
    return SchedulerOutput(chunks, copies)


# ---- against the plain runner ----------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_whatever_becomes_of_sequences(checkpoint: Checkpoint, graphs: bool) -> None:
    """Chunks beside decodes, forks with copies on write, preemptions, tables exchanged in place, scores."""
    twins = Twins(checkpoint, graphs=graphs)

    @settings(max_examples=200 if SLOW else 8, deadline=None, derandomize=True)
    @given(st.data())
    def live(data: st.DataObject) -> None:
        for pool in twins.pools:
            pool.fill_(math.nan)
        lives = Lives(data, (twins.plain, twins.gpu), twins.pools)
        for _ in range(data.draw(st.integers(4, 10))):
            lives.step(LIMITS.max_num_seqs, LIMITS.max_num_rows)

    live()
    if twins.recorder is not None:
        assert sum(graph.num_replays > 0 for graph in twins.recorder.graphs) > 2


def test_which_steps_are_graphs(checkpoint: Checkpoint) -> None:
    twins = Twins(checkpoint, graphs=True)
    assert twins.recorder is not None
    prompt = random_tokens(20)
    a = lambda n, spec: ScheduledChunk("a", prompt[n : n + 1], n, (3, 1), spec)  # noqa: E731
    b = lambda n, spec: ScheduledChunk("b", prompt[n : n + 1], n, (5, 6), spec)  # noqa: E731
    twins.execute(plan(ScheduledChunk("a", prompt[:17], 0, (3, 1), None)))
    twins.execute(plan(ScheduledChunk("b", prompt[:17], 0, (5, 6), None)))
    assert twins.recorder.num_replays == 0
    twins.execute(plan(a(17, ask(18)), b(17, ask(18, temperature=1.0))))
    assert twins.recorder.num_replays == 1
    twins.execute(plan(a(18, ask(19, logprobs=2)), b(18, None)))
    assert twins.recorder.num_replays == 2
    output = twins.execute(plan(a(19, ask(20, *range(9), temperature=1.0))))  # nine answers to a prompt
    assert twins.recorder.num_replays == 2
    assert len(output.samples[0].tokens) == 9 > LIMITS.max_num_seqs


def test_all_prompts_may_ask_for_the_most_answers_at_once(checkpoint: Checkpoint) -> None:
    twins = Twins(checkpoint, graphs=False)
    most = LIMITS.max_num_seqs
    chunks = [
        ScheduledChunk(str(index), (5, 6 + index), 0, (index + 1,), ask(2, *range(most), temperature=1.0))
        for index in range(most)
    ]
    output = twins.execute(plan(*chunks))
    assert [len(sample.tokens) for sample in output.samples] == [most] * most


def test_copies_are_made_before_a_graph_reads(checkpoint: Checkpoint) -> None:
    twins = Twins(checkpoint, graphs=True)
    prompt = random_tokens(24)
    twins.execute(plan(ScheduledChunk("a", prompt[:20], 0, (3, 4), None)))
    copies = (BlockCopy(BlockId(4), BlockId(9)),)
    twins.execute(
        plan(
            ScheduledChunk("a", prompt[20:21], 20, (3, 4), ask(21)),
            ScheduledChunk("b", prompt[21:22], 20, (3, 9), ask(21)),
            copies=copies,
        )
    )
    assert twins.recorder is not None and twins.recorder.num_replays == 1


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_nothing_and_only_copies(checkpoint: Checkpoint, graphs: bool) -> None:
    twins = Twins(checkpoint, graphs=graphs)
    assert twins.gpu.execute(plan()) == StepOutput(samples=())
    twins.pools[0][2], twins.pools[1][2] = 1.0, 1.0
    twins.execute(plan(copies=(BlockCopy(BlockId(2), BlockId(8)),)))
    assert (twins.pools[1][8] == 1.0).all()


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_logits_that_are_not_finite_give_no_token(checkpoint: Checkpoint, graphs: bool) -> None:
    twins = Twins(checkpoint, graphs=graphs)
    prompt = random_tokens(8)
    for name, block in (("a", 1), ("b", 2)):
        twins.execute(plan(ScheduledChunk(name, prompt, 0, (block,), None)))
    for pool in twins.pools:
        pool[1, 0, 1, 0, 3] = math.nan
    output = twins.execute(
        plan(*(ScheduledChunk(name, (5,), 8, (block,), ask(9)) for name, block in (("a", 1), ("b", 2))))
    )
    assert [len(found.tokens) for found in output.samples] == [0, 1]


class ScriptedMasks:
    """Allows one token to sequence ``a``, and cannot follow the grammar of any other."""

    def mask(self, sequence_id: str, spec: SampleSpec) -> object:
        if sequence_id != "a":
            raise GrammarError("it has gone astray")
        allowed = torch.zeros(101, dtype=torch.bool)
        allowed[42] = True
        return allowed.numpy()


def test_grammars_beside_plain_rows_in_a_graph(checkpoint: Checkpoint) -> None:
    twins = Twins(checkpoint, graphs=True)
    twins.plain.masks = twins.gpu.masks = ScriptedMasks()  # type: ignore[assignment]
    grammar = Grammar("regex", "x")
    output = twins.execute(
        plan(
            ScheduledChunk("a", (5,), 0, (1,), ask(1, grammar=grammar)),
            ScheduledChunk("b", (6,), 0, (2,), ask(1, grammar=grammar)),
            ScheduledChunk("c", (7,), 0, (3,), ask(1)),
        )
    )
    a, b, c = output.samples
    assert a.tokens[0].token_id == 42
    assert (b.tokens, b.error) == ((), "it has gone astray")
    assert c.tokens and c.error is None
    assert twins.recorder is not None and twins.recorder.num_replays == 1


# ---- under the scheduler ---------------------------------------------------------------------------


class WithTablesChecked:
    """Has the device's tables compared with the plan's, entry by entry, after each step."""

    def __init__(self, runner: GpuRunner) -> None:
        self._runner = runner

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        output = self._runner.execute(plan)
        for row, chunk in enumerate(plan.chunks):
            known = self._runner._buffers.block_tables[row, : len(chunk.block_table)]
            assert known.tolist() == list(chunk.block_table)
        return output


@pytest.mark.parametrize("restore", ["swap", "overlap", *["recompute"] * SLOW])
def test_texts_of_a_whole_engine(directory: Path, tmp_path: Path, restore: str) -> None:
    """With two requests' room for eight, several answers each: swapped, restored, taken over, forked."""
    loaded = load_deterministic(str(directory), NUM_BLOCKS, "float32", WINDOW)
    checkpoint = open_checkpoint(str(directory), "auto", 0)
    ops, shape = TorchOps(torch.float32, deterministic=True), attention_shape(checkpoint)

    def texts(make: Callable[[LlamaModel], Executor], num_blocks: int, name: str) -> list[list[int]]:
        model = new_model(checkpoint, ReferenceAttention(loaded.pool, shape), ops)
        mine = dataclasses.replace(loaded, runner=make(model))
        backend = RealBackend(mine, 24, 0, tmp_path / name)
        engine = SmallEngine(
            num_blocks=num_blocks, block_size=BLOCK_SIZE, host_blocks=24, restore=restore, backend=backend,
            mischief=Mischief(seed=3, max_delay_polls=3, shuffles=True), max_model_len=WINDOW,
            max_num_seqs=LIMITS.max_num_seqs, max_num_batched_tokens=LIMITS.max_num_rows,
        )  # fmt: skip
        shared = random_tokens(20, seed=1)
        for index in range(8):
            prompt = shared[: 20 * (index % 2)] + random_tokens(5 + 3 * index, seed=index)
            sampling = {"n": 2} if index == 5 else {"logprobs": 1} if index == 6 else {}
            heat = 0.0 if index % 3 else 1.0
            engine.add(f"r{index}", prompt, 12, temperature=heat, ignore_eos=True, seed=index, **sampling)
        engine.run()
        engine.assert_idle()
        if num_blocks < NUM_BLOCKS:
            assert sum(engine.scheduler.totals.preemptions.values()) > 0
        return [engine.sample(f"r{index}", which) for index in range(8) for which in range(1 + (index == 5))]

    recorders = []

    def make_gpu(model: LlamaModel) -> Executor:
        runner = GpuRunner(model, loaded.pool, BLOCK_SIZE, LIMITS, draw_like_torch)
        recorders.append(repeat_for_graphs(runner, is_strict=False))
        return WithTablesChecked(runner)

    expected = texts(lambda model: ModelRunner(model, loaded.pool, BLOCK_SIZE), NUM_BLOCKS, "plain")
    assert texts(make_gpu, 9, "gpu") == expected
    assert recorders[0].num_replays > 10


# ---- all parts of a GPU ----------------------------------------------------------------------------


def drive(runner: GpuRunner, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Prompts computed one by one, then decodes of all, of which the last leaves in mid-way."""
    ids = [list(prompt) for prompt in prompts]
    tables = [[3 * index + 5, 3 * index + 4, 3 * index + 6] for index in range(len(ids))]
    heats = (0.0, 1.0, 0.7)

    def chunk(index: int, start: int) -> ScheduledChunk:
        params = {"temperature": heats[index], "top_p": 0.8 if index == 2 else 1.0}
        spec = ask(len(ids[index]), index, output=ids[index][2:], **params)
        return ScheduledChunk(str(index), ids[index][start:], start, tables[index], spec)

    def take(output: StepOutput) -> None:
        for found in output.samples:
            ids[int(found.sequence_id)].append(found.tokens[0].token_id)

    for index in range(len(ids)):
        take(runner.execute(plan(chunk(index, 0))))
    for step in range(count):
        running = range(len(ids) - (step >= count // 2))
        take(runner.execute(plan(*(chunk(index, len(ids[index]) - 1) for index in running))))
    return ids


@pytest.mark.parametrize("deterministic", [False, *[True] * SLOW])  # else in tests/gpu/test_gpu_runner.py
def test_a_graph_does_what_its_steps_do_one_by_one(checkpoint: Checkpoint, deterministic: bool) -> None:
    """With our attention, operations and sampler; and it does nothing that a real graph could not."""
    prompts = [random_tokens(length, seed=length) for length in (5, 15, 18)]
    (eager, eager_pool), (graphed, pool) = (
        make_whole(checkpoint, 4, deterministic=deterministic) for _ in range(2)
    )
    recorder = repeat_for_graphs(graphed, is_strict=True)
    count = 6 if SLOW else 2
    expected, found = drive(eager, prompts, count), drive(graphed, prompts, count)
    assert found == expected
    assert recorder.num_replays == count
    if deterministic:
        assert torch.equal(pool.nan_to_num(7.0), eager_pool.nan_to_num(7.0))
    oracle = make_model(num_hidden_layers=1, max_position_embeddings=WINDOW)
    assert found[0][5:] == oracle_greedy(oracle, prompts[0], len(found[0]) - 5)


class Forgetful(GpuRunner):
    """Does within a graph what a graph cannot do."""

    fault: str
    seen: list[torch.Tensor]

    def _decode(self, size: int) -> None:
        match self.fault:
            case "look":
                self._buffers.words.sum().item()
            case "shape":
                self._buffers.tokens[: len(self.seen)].zero_()
            case "address":
                torch.empty(size).copy_(self.seen[-1] if self.seen else torch.zeros(size))
        super()._decode(size)


@pytest.mark.parametrize("fault", ["look", "shape", "address"])
def test_what_no_graph_can_do_is_found(checkpoint: Checkpoint, fault: str) -> None:
    whole, pool = make_whole(checkpoint, 1, deterministic=False)
    runner = Forgetful(whole._model, pool, BLOCK_SIZE, StepLimits(1, 32, WINDOW))
    runner.fault, runner.seen = fault, []  # type: ignore[attr-defined]
    if fault == "look":
        with pytest.raises(AssertionError, match="the host reads"):
            repeat_for_graphs(runner, is_strict=True)
        return
    repeat_for_graphs(runner, is_strict=True)
    runner.execute(plan(ScheduledChunk("a", (5,), 0, (1,), ask(1))))
    runner.seen.append(torch.zeros(1))  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="a graph would not"):
        runner.execute(plan(ScheduledChunk("a", (6,), 1, (1,), ask(2))))
