"""A whole engine: the same greedy text with and without forced swaps, and by CUDA graphs and kernel by
kernel.

The models are random: a tiny one, and one with heads, groups and a vocabulary as those that are served have.
Where exact equality is asked for, the engine is in deterministic mode, in which a row's result depends
neither on its neighbours nor on how a prompt was cut; graphs are also tried in the other, in float32, whose
rounding moves no maximum of a random model.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, MemorySize
from engine.execution.gpu_runner import GpuRunner
from engine.execution.runner import load_runner
from engine.messages import AddRequest, SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput
from engine.startup import build_core
from engine.stats import EngineStats
from tests.support.devices import HAS_GPU, ON_ANY_DEVICE
from tests.support.tiny_models import make_model, random_tokens
from tests.support.tiny_tokenizers import byte_level, save

SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "intermediate_size": 128}  # heads of 64
SERVED_SIZES = {
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 128_256 if HAS_GPU else 300,
    "tie_word_embeddings": True,
}
BLOCK_SIZE = 16
WINDOW = 128
OFF = MemorySize(num_bytes=0)
NUM_REQUESTS = 24 if HAS_GPU else 6
MAX_TOKENS = 60 if HAS_GPU else 8
PROMPTS = [random_tokens(5 + 7 * index % 60, seed=index) for index in range(NUM_REQUESTS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(SIZES, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(SERVED_SIZES, tmp_path_factory.mktemp("served"))


@pytest.fixture
def chosen_model(request: pytest.FixtureRequest) -> Path:
    """The one of the fixture that is named."""
    found: Path = request.getfixturevalue(request.param)
    return found


def save_model(sizes: dict[str, object], directory: Path) -> Path:
    make_model(**sizes).save_pretrained(directory)
    save(byte_level(), directory)
    return directory


def config(model: Path, device: str, num_blocks: int, **settings: object) -> EngineConfig:
    dtype_bytes = {"float32": 4, "bfloat16": 2}[str(settings.setdefault("dtype", "float32"))]
    sizes = json.loads((model / "config.json").read_text())
    heads = sizes["num_key_value_heads"] * sizes["head_dim"]
    block_bytes = sizes["num_hidden_layers"] * 2 * BLOCK_SIZE * heads * dtype_bytes
    return EngineConfig(
        model=str(model),
        device=device,
        device_kv=MemorySize(num_bytes=num_blocks * block_bytes),
        max_model_len=WINDOW,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        **settings,  # type: ignore[arg-type]
    )


def generate(settings: EngineConfig, *, preempts: bool = False) -> tuple[list[list[int]], EngineStats]:
    """The text of each prompt, all of them sent at once. ``preempts``: all that run, every few steps."""
    woken = threading.Event()
    core, _ = build_core(settings, lambda *_: None, time.perf_counter, woken.set)
    while settings.host_kv != OFF and not core.stats().tiers["host"].blocks_free:
        core.step()  # takes in the host memory that has come
    sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=0, temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        core.add(AddRequest(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=sampling))
    texts: list[list[int]] = [[] for _ in PROMPTS]
    num_steps = num_ended = 0
    while num_ended < len(PROMPTS):
        if not core.can_step():
            assert woken.wait(30), "nothing goes on"
            woken.clear()
        report = core.step()
        num_steps += 1
        for delta in () if report is None else report.deltas:
            assert delta.error is None, delta.error
            texts[int(delta.request_id)] += delta.token_ids
            num_ended += delta.ends_request
        if preempts and num_steps % 4 == 0:
            for group in list(core._scheduler.queues.running.values()):
                core._scheduler.preempt(group)
    assert core.problems() == ()
    stats = core.stats()
    core.close(5.0)
    return texts, stats


@ON_ANY_DEVICE
@pytest.mark.parametrize(
    ("chosen_model", "dtype"),
    [("model", "float32"), ("model", "bfloat16"), ("served_model", "bfloat16")]
    if HAS_GPU
    else [("model", "float32"), ("served_model", "float32")],
    indirect=["chosen_model"],
)
def test_greedy_text_with_and_without_forced_swaps(chosen_model: Path, device: str, dtype: str) -> None:
    model = chosen_model
    exact = {"dtype": dtype, "deterministic": True, "restore": "swap"}
    num_blocks = WINDOW // BLOCK_SIZE * (NUM_REQUESTS + 2)
    expected, stats = generate(config(model, device, num_blocks, host_kv=OFF, **exact))
    assert sum(stats.preemptions.values()) == 0
    host_kv = MemorySize(num_bytes=2**26)
    swapping = config(model, device, num_blocks, host_kv=host_kv, kv_checksums=True, **exact)
    texts, stats = generate(swapping, preempts=True)
    assert texts == expected
    assert {len(text) for text in texts} == {MAX_TOKENS}
    assert stats.transfers["swap_out"].num_done > NUM_REQUESTS
    assert stats.transfers["swap_in"].num_done > NUM_REQUESTS
    assert sum(transfer.num_corrupt + transfer.num_failed for transfer in stats.transfers.values()) == 0


def step_through(runner: object, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """Texts of one batch: each prompt in a step of its own, then all decode together. Some are drawn."""
    texts: list[list[int]] = [[] for _ in prompts]
    tables = [tuple(range(1 + 8 * index, 9 + 8 * index)) for index in range(len(prompts))]

    def chunk(index: int, start: int) -> ScheduledChunk:
        known = [*prompts[index], *texts[index]]
        params = SamplingParams(max_tokens=num_tokens, seed=0, temperature=0.8 * (index % 3 == 1), top_p=0.9)
        ask = SampleSpec(params, (index,), len(known), tuple(prompts[index]), tuple(texts[index]), ())
        return ScheduledChunk(str(index), tuple(known[start:]), start, tables[index], ask)

    def execute(*chunks: ScheduledChunk) -> None:
        for sample in runner.execute(SchedulerOutput(chunks)).samples:  # type: ignore[attr-defined]
            texts[int(sample.sequence_id)].append(sample.tokens[0].token_id)

    for index in range(len(prompts)):
        execute(chunk(index, 0))
    for _ in range(num_tokens - 1):
        lengths = [len(prompt) + len(text) for prompt, text in zip(prompts, texts, strict=True)]
        execute(*(chunk(index, length - 1) for index, length in enumerate(lengths)))
    return texts


@ON_ANY_DEVICE
@pytest.mark.parametrize(
    ("chosen_model", "dtype", "deterministic"),
    [("model", "float32", False), ("model", "bfloat16", True), ("served_model", "bfloat16", True)]
    if HAS_GPU
    else [("model", "float32", False), ("served_model", "float32", False)],
    indirect=["chosen_model"],
)
def test_graphs_compute_what_kernels_launched_one_by_one_do(
    chosen_model: Path, device: str, dtype: str, deterministic: bool
) -> None:
    """At sizes that are captured and at those that are padded."""
    settings = config(chosen_model, device, 140, dtype=dtype, deterministic=deterministic, host_kv=OFF)
    runner, batches = load_runner(settings, lambda *_: None).runner, (1, 3, 8, 13) if HAS_GPU else (2,)
    replayed = [step_through(runner, PROMPTS[:size], 12) for size in batches]
    assert isinstance(runner, GpuRunner) or device == "cpu"
    if isinstance(runner, GpuRunner):
        assert runner.graphs is not None and len(runner.graphs) > 0, "nothing was captured"
        runner.graphs = None
    assert [step_through(runner, PROMPTS[:size], 12) for size in batches] == replayed


def step_inputs(runner: object) -> list[torch.Tensor]:
    """What a GPU made of the plan that it was sent."""
    if not isinstance(runner, GpuRunner):
        return []
    names = ("token_ids", "positions", "slot_mapping", "query_start", "context_start", "seq_lens")
    return [getattr(runner._buffers, name) for name in names]


@ON_ANY_DEVICE
def test_a_decode_step_has_the_same_tokens_a_thousand_times(model: Path, device: str) -> None:
    dtype = "bfloat16" if HAS_GPU else "float32"
    runner = load_runner(config(model, device, 140, dtype=dtype), lambda *_: None).runner
    step_through(runner, PROMPTS[:5], 3)
    plans = [(PROMPTS[index][-1], len(PROMPTS[index])) for index in range(5)]
    params = SamplingParams(max_tokens=1, seed=0, temperature=1.0)
    plan = SchedulerOutput(
        tuple(
            ScheduledChunk(
                str(index),
                (token,),
                start,
                tuple(range(1 + 8 * index, 9 + 8 * index)),
                SampleSpec(params, (index,), start + 1, (), (), ()),
            )
            for index, (token, start) in enumerate(plans)
        )
    )

    def execute() -> tuple[object, list[torch.Tensor]]:
        for made in step_inputs(runner):
            made.zero_()
        return runner.execute(plan).samples, [made.clone() for made in step_inputs(runner)]

    first, first_inputs = execute()
    for _ in range(1000 if HAS_GPU else 3):
        samples, inputs = execute()
        assert samples == first
        assert all(torch.equal(one, other) for one, other in zip(inputs, first_inputs, strict=True))
