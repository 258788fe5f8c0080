"""An engine process that computes nothing: the real socket, threads and messages around a ``ScriptedCore``.

Start: ``python -P -m engine.scripted_process FD``, which is what ``tidegate serve --engine scripted:RATE``
does. The model lends its tokenizer and its window; its weights are not read.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from engine.config import ConfigError, EngineConfig
from engine.messages import EngineInfo
from engine.process import Core, main
from engine.scripted_core import ScriptedCore
from engine.scripted_words import Words

_NUM_BLOCKS = 10**7  # so that no request is turned away for want of room


def build(
    config: EngineConfig,
    on_progress: Callable[[str, int, int], None],
    clock: Callable[[], float],
    wake: Callable[[], None],
) -> tuple[Core, EngineInfo]:
    """A core by ``config.script``. Raises ConfigError for a model that cannot lend its tokenizer."""
    assert config.script is not None
    info = scripted_info(config)
    core = ScriptedCore(
        config.script,
        words_of(Path(info.tokenizer_dir)),
        max_num_seqs=config.max_num_seqs,
        num_blocks=info.num_blocks,
        clock=clock,
    )
    return core, info


def words_of(tokenizer_dir: Path) -> Words:
    """Raises ConfigError."""
    try:
        return Words.of(json.loads((tokenizer_dir / "tokenizer.json").read_bytes())["model"]["vocab"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError("The model's tokenizer has no words for a scripted engine.") from error


def scripted_info(config: EngineConfig) -> EngineInfo:
    """As if the model had been loaded. Raises ConfigError. Loads torch."""
    from engine.loading.checkpoint import open_checkpoint
    from engine.loading.tokenizer import prepare_tokenizer

    checkpoint = open_checkpoint(config.model, config.load_format, config.seed)
    tokenizer = prepare_tokenizer(checkpoint)
    window = config.max_model_len or checkpoint.config.max_position_embeddings
    return EngineInfo(
        model_name="scripted", architecture=checkpoint.config.architecture, device="none", dtype="none",
        num_parameters=0, vocab_size=checkpoint.config.vocab_size, max_model_len=window,
        block_size=config.block_size, num_blocks=_NUM_BLOCKS, kv_bytes=0, weight_bytes=0,
        memory_total_bytes=0, memory_available_bytes=0, threads=1, attention_backend="none",
        tokenizer_dir=str(tokenizer.directory), chat_template=tokenizer.chat_template,
        bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token,
        stop_token_ids=tuple(checkpoint.config.eos_token_ids),
        notes=("nothing is computed: a scripted engine makes up all answers",),
    )  # fmt: skip


if __name__ == "__main__":
    exit_status = main(sys.argv[1:], build)
    logging.shutdown()
    os._exit(exit_status)
