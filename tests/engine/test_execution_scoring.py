"""Log probabilities of prompts on tiny models, in any chunks and slices. The oracle is transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.execution import scoring
from engine.loading.checkpoint import open_checkpoint
from engine.messages import PromptLogprobs
from engine.schedule import ScheduledChunk, SchedulerOutput, Score, ScoreSpec
from tests.support.tiny_models import Loaded, make_model, oracle_logits, random_tokens

PROMPT = random_tokens(90, seed=3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_model().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def oracle() -> torch.Tensor:
    """Log probabilities after each position of the prompt, ``[90, V]``."""
    return torch.log_softmax(oracle_logits(make_model(), PROMPT), dim=1)


def scored(loaded: Loaded, sizes: Sequence[int], num_top: int, start: int = 0) -> list[PromptLogprobs]:
    """Of the positions from ``start`` on, a part for each chunk."""
    found = []
    for chunk in loaded.chunks(PROMPT, sizes):
        first, last = max(start, chunk.start), min(chunk.start + len(chunk.token_ids), len(PROMPT) - 1)
        ask = ScoreSpec(first, PROMPT[first + 1 : last + 1], num_top) if first < last else None
        step = ScheduledChunk("r", chunk.token_ids, chunk.start, chunk.block_table, None, ask)
        output = loaded.runner.execute(SchedulerOutput((step,)))
        found += [score.logprobs for score in output.scores if score.logprobs is not None]
    return found


def figures(parts: Sequence[PromptLogprobs]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log probabilities, ranks, and the alternatives' ids and log probabilities."""
    return (
        np.concatenate([np.frombuffer(part.logprobs, np.float32) for part in parts]),
        np.concatenate([np.frombuffer(part.ranks, np.uint32) for part in parts]),
        np.concatenate([np.frombuffer(p.top_ids, np.uint32).reshape(len(p), p.num_top) for p in parts]),
        np.concatenate([np.frombuffer(p.top_logprobs, np.float32).reshape(len(p), p.num_top) for p in parts]),
    )


def assert_agrees(parts: Sequence[PromptLogprobs], oracle: torch.Tensor, start: int = 0) -> None:
    logprobs, ranks, top_ids, top_logprobs = figures(parts)
    rows = oracle[start:-1]
    asked = rows.gather(1, torch.tensor(PROMPT[start + 1 :])[:, None])
    assert np.allclose(logprobs, asked[:, 0], atol=1e-4)
    assert (ranks == ((rows > asked).sum(dim=1) + 1).numpy()).all()
    best = rows.topk(top_ids.shape[1], dim=1)
    assert (top_ids == best.indices.numpy()).all()
    assert np.allclose(top_logprobs, best.values, atol=1e-4)


@pytest.mark.parametrize("sizes", [[90], [*[1] * 20, 70], [33, 1, 56], [89, 1]])
@pytest.mark.parametrize("num_top", [0, 5])
def test_any_chunks_give_the_references_figures(
    path: Path, oracle: torch.Tensor, sizes: list[int], num_top: int
) -> None:
    loaded = Loaded(open_checkpoint(str(path), "auto", 0))
    assert_agrees(scored(loaded, sizes, num_top), oracle)
    assert_agrees(scored(loaded, sizes, num_top, start=41), oracle, start=41)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_logits_are_taken_in_slices(
    path: Path, oracle: torch.Tensor, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(scoring, "SLICE_ELEMENTS", rows * 101 + 50)
    loaded = Loaded(open_checkpoint(str(path), "auto", 0))
    taken: list[int] = []
    logits = loaded.model.logits

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        taken.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(loaded.model, "logits", watched)
    assert_agrees(scored(loaded, [90], 3), oracle)
    assert max(taken) == rows and sum(taken) == 89


def test_a_slice_of_a_large_vocabulary_is_a_few_rows() -> None:
    assert scoring.SLICE_ELEMENTS // 128_256 * 128_256 * 4 <= 32 * 2**20


def test_chunks_of_several_requests_and_what_each_asked_for(path: Path, oracle: torch.Tensor) -> None:
    loaded = Loaded(open_checkpoint(str(path), "auto", 0))
    tables = ((1, 2), (3, 4), (5, 6))
    asks = (ScoreSpec(0, PROMPT[1:20], 2), None, ScoreSpec(7, PROMPT[8:31], 200))
    chunks = [
        ScheduledChunk(f"r{i}", PROMPT[:30], 0, table, None, ask)
        for i, (table, ask) in enumerate(zip(tables, asks, strict=True))
    ]
    first, last = loaded.runner.execute(SchedulerOutput(tuple(chunks))).scores
    assert (first.sequence_id, last.sequence_id) == ("r0", "r2")
    assert first.logprobs is not None and last.logprobs is not None
    assert (len(first.logprobs), first.logprobs.num_top) == (19, 2)
    assert (len(last.logprobs), last.logprobs.num_top) == (23, 101), "no more than the vocabulary has"
    for part, start in ((first.logprobs, 0), (last.logprobs, 7)):
        asked = oracle[start : start + len(part)].gather(
            1, torch.tensor(PROMPT[start + 1 : start + 1 + len(part)])[:, None]
        )
        assert np.allclose(figures([part])[0], asked[:, 0], atol=1e-4)


def test_the_entries_of_what_is_packed(path: Path, oracle: torch.Tensor) -> None:
    (part,) = scored(Loaded(open_checkpoint(str(path), "auto", 0)), [90], 5)
    entries = [*part.entries(2)]
    assert len(entries) == len(part) == 89
    logprobs, ranks, top_ids, top_logprobs = figures([part])
    for i, (entry, rank) in enumerate(entries):
        assert (entry.logprob, rank) == (float(logprobs[i]), ranks[i])
        assert entry.top == tuple(zip(top_ids[i, :2].tolist(), top_logprobs[i, :2].tolist(), strict=True))
    assert len(next(part.entries(20))[0].top) == 5


def test_a_row_that_is_not_finite_spoils_its_chunk_only() -> None:
    def logits_of(hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    hidden = torch.zeros(6, 4)
    hidden[1, 2] = torch.nan
    hidden[2, 0] = torch.inf
    chunks = (
        ScheduledChunk("bad", (0, 1, 2), 0, (0,), None, ScoreSpec(0, (1, 2, 3), 1)),
        ScheduledChunk("good", (0, 1, 2), 0, (0,), None, ScoreSpec(1, (2, 3), 1)),
    )
    bad, good = scoring.score(SchedulerOutput(chunks), hidden, logits_of, 4)
    assert bad == Score("bad", None)
    assert good.logprobs is not None and len(good.logprobs) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_deterministic_mode_any_chunks_and_slices_give_the_same_bits(
    path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    loaded = Loaded(open_checkpoint(str(path), "auto", 0), dtype, deterministic=True)
    expected = figures(scored(loaded, [90], 5))
    for sizes, rows in (([*[1] * 20, 70], 64), ([17, 40, 33], 5), ([64, 26], 1)):
        monkeypatch.setattr(scoring, "SLICE_ELEMENTS", rows * 101)
        found = figures(scored(loaded, sizes, 5))
        assert all((ours == theirs).all() for ours, theirs in zip(found, expected, strict=True))
