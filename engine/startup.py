"""Puts an engine together from its settings: model, tiers, scheduler, core.

Runs on: step thread, once. With ``execution.tiers``, all that knows both the deciding and the doing side.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.config import ConfigError, EngineConfig
from engine.core import EngineCore
from engine.execution.grammar_compiler import GrammarCompiler
from engine.execution.grammar_trial import SharedTokenizer, TrialWorkshop
from engine.execution.grammars import GrammarMasks, TokenizerSource
from engine.execution.runner import LoadedRunner, load_runner
from engine.execution.tiers import KvTiers, build_tiers, check_tier_settings
from engine.messages import EngineInfo
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager


def build_core(
    config: EngineConfig,
    on_progress: Callable[[str, int, int], None],
    clock: Callable[[], float],
    wake: Callable[[], None],
) -> tuple[EngineCore, EngineInfo]:
    """Load the model and build a core around it.

    ``on_progress(phase, done, total)`` is called while loading, ``wake`` from other threads when the core
    has something to take in. Raises ConfigError for anything the user can put right.
    """
    _check(config)
    loaded = load_runner(config, on_progress)
    kv = build_tiers(config, loaded, wake, clock)
    info = _describe(config, loaded, kv)
    blocks = BlockManager(
        kv.tiers,
        info.block_size,
        restore=kv.restore,
        costs=kv.costs,
        prefix_caching=config.enable_prefix_caching,
    )
    scheduler_config = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        stop_token_ids=info.stop_token_ids,
        cache_secret=kv.cache_secret,
        fingerprint=loaded.fingerprint,
    )
    compiler = _build_compiler(info, config.grammar_timeout_s, wake)
    masks = GrammarMasks(compiler.find, info.vocab_size, max_states=2 * config.max_num_seqs)
    loaded.runner.masks = masks
    core = EngineCore(
        Scheduler(scheduler_config, blocks),
        blocks,
        kv.transfers,
        loaded.runner,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        clock=clock,
        take_new_host_blocks=kv.take_new_host_blocks,
        release_memory=kv.release_memory,
        compiler=compiler,
        forget_grammar=masks.forget,
    )
    return core, info


def _build_compiler(info: EngineInfo, timeout_s: float, wake: Callable[[], None]) -> GrammarCompiler:
    """Costs nothing before the first grammar comes."""
    tokenizer = SharedTokenizer(TokenizerSource(info.tokenizer_dir, info.vocab_size, info.stop_token_ids))
    return GrammarCompiler(lambda: TrialWorkshop(tokenizer, timeout_s), wake)


def _check(config: EngineConfig) -> None:
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} must be at least"
            f" --max-num-seqs {config.max_num_seqs}, or running sequences could not all take a token."
        )
    check_tier_settings(config)


def _describe(config: EngineConfig, loaded: LoadedRunner, kv: KvTiers) -> EngineInfo:
    return msgspec.structs.replace(
        loaded.info,
        host_blocks=kv.host_blocks,
        host_kv_bytes=kv.host_blocks * loaded.layout.block_bytes,
        host_link=kv.host_link,
        disk_blocks=kv.disk_blocks,
        disk_kv_bytes=kv.disk_kv_bytes,
        disk_blocks_found=kv.disk_blocks_found,
        fingerprint=loaded.fingerprint,
        deterministic=config.deterministic,
        policies=(config.eviction, config.write_policy, config.restore),
        notes=(*loaded.info.notes, *kv.notes),
    )
