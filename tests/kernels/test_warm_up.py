"""Once a runner is warm no step makes another binary, for to compile is to stall every stream."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.gpu_runner import GpuRunner
from engine.execution.parts import prompt_lengths
from engine.execution.warm_up import warm_up
from engine.loading.checkpoint import open_checkpoint
from engine.schedule import SchedulerOutput, StepOutput
from tests.support.binaries import noting_binaries
from tests.support.gpu_runners import BLOCK_SIZE, NUM_BLOCKS, WINDOW, make_whole, repeat_for_graphs
from tests.support.random_lives import Lives
from tests.support.tiny_models import make_model
from tests.support.tiny_tokenizers import byte_level, save

SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
NUM_SEQS, NUM_ROWS = 5, 24


class Heard:
    """A runner whose last answer is kept."""

    def __init__(self, runner: GpuRunner) -> None:
        self._runner = runner
        self.num_copies = 0

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        self.num_copies += len(plan.copies)
        self.last = self._runner.execute(plan)
        return self.last


class Echo:
    """Answers as the other has just answered: lives are of two runners, and one is enough here."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        return self._heard.last


@pytest.mark.parametrize("deterministic", [False, *[True] * SLOW])
def test_no_step_makes_another_binary(tmp_path: Path, deterministic: bool) -> None:
    """Chunks beside decodes, forks with copies on write, preemptions, tables exchanged in place, scores."""
    make_model(num_hidden_layers=1, max_position_embeddings=WINDOW).save_pretrained(tmp_path)
    save(byte_level(), tmp_path)
    checkpoint = open_checkpoint(str(tmp_path), "auto", 0)
    runner, pool = make_whole(checkpoint, NUM_SEQS, deterministic=deterministic)
    with noting_binaries() as warm:
        warm_up(runner, BLOCK_SIZE, NUM_BLOCKS, prompt_lengths(NUM_ROWS, WINDOW))
        repeat_for_graphs(runner, is_strict=False)
    heard = Heard(runner)

    @settings(max_examples=40 if SLOW else 2, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def live(data: st.DataObject) -> None:
        pool.fill_(0.0)
        lives = Lives(data, (heard, Echo(heard)), (pool, pool))
        for _ in range(data.draw(st.integers(3, 6))):
            lives.step(NUM_SEQS, NUM_ROWS)

    with noting_binaries() as met:
        live()
    assert met - warm == set()
    assert heard.num_copies > 0 and len(met) > len(warm) // 2
