"""The real engine process around the fake executor: same sockets, threads and step loop, no model.

Settings come through ``EngineConfig.model``: ``fake``, or ``fake:SECONDS`` for the time of a step;
``fail-load``, ``crash-load`` and ``slow-load`` for an engine that does not start, ``fail-step`` for one
that breaks; ``other`` for one with other weights. ``next:FILE`` is what the first line of that file says,
which is taken from it: each start finds the next one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine.config import ConfigError, EngineConfig
from engine.core import EngineCore
from engine.messages import EngineInfo
from engine.process import main
from engine.schedule import SchedulerOutput, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from tests.support.fake_kv import VOCAB_SIZE, FakeKvExecutor, FakeMemory
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.policies.eviction import LruEviction
from tiering.tiers import Tiers
from tiering.transfers import TransferEngine
from tiering.types import Tier

NUM_BLOCKS = 256
WINDOW = 512


class _SlowExecutor(FakeKvExecutor):
    def __init__(self, step_s: float, block_size: int, *, fails: bool) -> None:
        super().__init__(FakeMemory(block_size, {Tier.DEVICE: NUM_BLOCKS}))
        self._step_s = step_s
        self._fails = fails

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        if self._fails:
            raise RuntimeError("scripted failure")
        time.sleep(self._step_s)
        return super().execute(plan)


def build(
    config: EngineConfig,
    on_progress: Callable[[str, int, int], None],
    clock: Callable[[], float],
    wake: Callable[[], None],
) -> tuple[EngineCore, EngineInfo]:
    name, _, step_s = config.model.partition(":")
    if name == "next":
        name, _, step_s = _take_line(Path(step_s)).partition(":")
    if name == "fail-load":
        raise ConfigError("There is no such model.")
    if name == "slow-load":
        time.sleep(60)
    if name == "crash-load":
        os._exit(9)
    for done in range(3):
        on_progress("weights", done, 2)
    blocks = BlockManager(Tiers(BlockPool(NUM_BLOCKS, LruEviction)), config.block_size)
    scheduler = Scheduler(SchedulerConfig(config.max_num_seqs, config.max_num_batched_tokens, WINDOW), blocks)
    executor = _SlowExecutor(float(step_s or 0), config.block_size, fails=name == "fail-step")
    transfers = TransferEngine({}, 1, clock)
    core = EngineCore(
        scheduler, blocks, transfers, executor, max_model_len=WINDOW, vocab_size=VOCAB_SIZE, clock=clock
    )
    return core, _info(config, b"other" if name == "other" else b"same")


def _take_line(path: Path) -> str:
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join(rest))
    return first


def _info(config: EngineConfig, fingerprint: bytes) -> EngineInfo:
    return EngineInfo(
        model_name="fake", architecture="fake", device="cpu", dtype="none", num_parameters=0,
        vocab_size=VOCAB_SIZE, max_model_len=WINDOW, block_size=config.block_size, num_blocks=NUM_BLOCKS,
        kv_bytes=0, weight_bytes=0, memory_total_bytes=0, memory_available_bytes=0, threads=1,
        attention_backend="fake", tokenizer_dir="", chat_template=None,
        bos_token=None, eos_token=None, stop_token_ids=(), fingerprint=fingerprint,
    )  # fmt: skip


if __name__ == "__main__":
    os._exit(main(sys.argv[1:], build))
