"""Puts an engine together from its settings: model, pools, scheduler, core.

Runs on: step thread, once. The only module that knows both the deciding and the doing side.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.config import ConfigError, EngineConfig
from engine.core import EngineCore
from engine.execution.runner import load_runner
from engine.messages import EngineInfo
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager
from tiering.policies.eviction import LruEviction


def build_core(
    config: EngineConfig, on_progress: Callable[[str, int, int], None], clock: Callable[[], float]
) -> tuple[EngineCore, EngineInfo]:
    """Load the model and build a core around it.

    ``on_progress(phase, done, total)`` is called while loading. Raises ConfigError for anything the
    user can put right.
    """
    _check(config)
    loaded = load_runner(config, on_progress)
    info = loaded.info
    blocks = BlockManager(
        info.num_blocks, info.block_size, LruEviction(), prefix_caching=config.enable_prefix_caching
    )
    scheduler_config = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        stop_token_ids=info.stop_token_ids,
        cache_secret=config.cache_secret,
    )
    core = EngineCore(
        Scheduler(scheduler_config, blocks),
        blocks,
        loaded.runner,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        clock=clock,
    )
    return core, info


def _check(config: EngineConfig) -> None:
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} must be at least"
            f" --max-num-seqs {config.max_num_seqs}, or running sequences could not all take a token."
        )
