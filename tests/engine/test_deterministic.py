"""Deterministic mode by torch is phase- and batch-invariant, bit for bit: by operation, and by whole models.

A row's result may depend on the row alone: not on how many rows there are, where it stands among them,
what they are, or how a prompt was cut into chunks.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch

from engine.execution.batch import build_model_input
from engine.loading.checkpoint import open_checkpoint
from engine.models.layers import RowTiledLinear, TorchLinear, TorchNorm, TorchOps, silu_and_mul
from engine.schedule import ScheduledChunk, SchedulerOutput
from tests.support import reference
from tests.support.tiny_models import CPU, Loaded, make_model, random_tokens

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(960, 576), (576, 1536), (3072, 576), (97, 33), (101, 64)]  # of the built-in model, and odd ones
SPLITS = [[83], [1] * 83, [40, 43], [16, 16, 16, 16, 19], [1, 40, 1, 1, 40], [64, 3, 16]]


def parts(rows: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    return list(rows.split(sizes))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_depends_on_its_row_alone(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, rows = torch.randn(shape, generator=generator).to(dtype), torch.randn(83, shape[1]).to(dtype)
    bias = torch.randn(shape[0]).to(dtype)
    linear = TorchOps(dtype, deterministic=True).linear(weight, bias)
    expected = linear(rows)
    torch.testing.assert_close(expected, TorchLinear(weight, bias)(rows), rtol=0.02, atol=0.5)
    for sizes in SPLITS:
        assert torch.equal(torch.cat([linear(part) for part in parts(rows, sizes)]), expected)
    for seed in range(5):
        order = torch.randperm(83, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(linear(rows[order]), expected[order])


def by_row(rows: torch.Tensor) -> torch.Tensor:
    return silu_and_mul(rows, by_row=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_activations_depend_on_their_row_alone(dtype: torch.dtype) -> None:
    norm = TorchNorm(torch.randn(576), 1e-5, dtype)
    for operation, rows in ((norm, torch.randn(83, 576)), (by_row, torch.randn(83, 3072).to(dtype))):
        expected = operation(rows.clone())
        for sizes in SPLITS:
            found = torch.cat([operation(part.contiguous()) for part in parts(rows.clone(), sizes)])
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1376, 1536, 11008, 33000])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_activations_do_not_depend_on_where_threads_meet(
    dtype: torch.dtype, width: int, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = torch.randn(83, 2 * width, generator=torch.Generator().manual_seed(0)).to(dtype)
        alone = torch.cat([silu_and_mul(row.clone(), by_row=True) for row in rows.split(1)])
        for count in (2, 7, 16, 83):
            assert torch.equal(silu_and_mul(rows[:count].clone(), by_row=True), alone[:count])
    finally:
        torch.set_num_threads(before)


def test_no_rows_are_no_trouble() -> None:
    assert RowTiledLinear(TorchLinear(torch.ones(5, 3)))(torch.ones(0, 3)).shape == (0, 5)


def deterministic(path: Path, dtype: torch.dtype) -> Loaded:
    return Loaded(open_checkpoint(str(path), "auto", 0), dtype, deterministic=True)


@pytest.mark.timeout(600)  # the built-in model, beside other tests, on a CPU without bfloat16
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["tiny", "built-in"])
def test_logits_and_kv_are_the_same_for_every_cut_of_a_prompt(
    kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    if kind == "tiny":
        make_model(attention_bias=True).save_pretrained(tmp_path)
    loaded = deterministic(tmp_path if kind == "tiny" else reference.builtin_gguf(), dtype)
    tokens = random_tokens(83)
    expected = loaded.logits(tokens)
    kv = loaded.pool.clone()
    for sizes in SPLITS[1:]:
        loaded.pool.fill_(float("nan"))
        assert torch.equal(loaded.logits(tokens, sizes), expected)
        assert torch.equal(loaded.pool.nan_to_num(7.0), kv.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours_change_nothing(dtype: torch.dtype, tmp_path: Path) -> None:
    """Sequences in random batches of chunks, against each of them alone."""
    make_model().save_pretrained(tmp_path)
    loaded = deterministic(tmp_path, dtype)
    histories = [random_tokens(length, seed) for seed, length in enumerate((1, 17, 40, 63, 80))]
    alone = [loaded.logits(history)[-1] for history in histories]
    for seed in range(4):
        batched = run_in_random_batches(loaded, histories, random.Random(seed))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(batched, alone, strict=True))


def run_in_random_batches(
    loaded: Loaded, histories: list[list[int]], random_numbers: random.Random
) -> list[torch.Tensor]:
    free = list(range(loaded.pool.shape[0]))
    random_numbers.shuffle(free)
    tables = [tuple(free.pop() for _ in range(-(-len(h) // loaded.block_size))) for h in histories]
    done = [0] * len(histories)
    last: dict[int, torch.Tensor] = {}
    while len(last) < len(histories):
        unfinished = [i for i, history in enumerate(histories) if done[i] < len(history)]
        going = [i for i in unfinished if random_numbers.random() < 0.7]
        random_numbers.shuffle(going)
        chunks = []
        for i in going:
            stop = min(len(histories[i]), done[i] + random_numbers.choice((1, 2, 16, 33)))
            chunks.append(ScheduledChunk(str(i), histories[i][done[i] : stop], done[i], tables[i], None))
        if not chunks:
            continue
        with torch.inference_mode():
            inputs = build_model_input(SchedulerOutput(tuple(chunks)), loaded.block_size, CPU)
            ends = torch.tensor(list(itertools.accumulate(len(c.token_ids) for c in chunks))) - 1
            logits = loaded.model.forward(dataclasses.replace(inputs, logit_rows=ends))
        for row, (i, chunk) in enumerate(zip(going, chunks, strict=True)):
            done[i] = chunk.start + len(chunk.token_ids)
            if done[i] == len(histories[i]):
                last[i] = logits[row]
    return [last[i] for i in range(len(histories))]
