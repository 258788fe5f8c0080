"""The model of a check as transformers makes it, with the weights that ours has; how fast it generates."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.dummy_weights import DummyWeights
from benchmarks.gpu_check.timing import Timing
from benchmarks.gpu_check.workload import WARM_UP_SEED, prompts, seeds, speed_name

NO_TOKEN = -1  # for an end of text that never comes
Generate = Callable[[list[list[int]], int], int]


def load_model(context: Context) -> Any:
    """A ``LlamaForCausalLM`` in the engine's dtype on its device. Raises ImportError without transformers."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import LlamaConfig, LlamaForCausalLM

    model = context.scale.model
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.max_position_embeddings,
        rms_norm_eps=model.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        tie_word_embeddings=model.tie_word_embeddings,
        attn_implementation="sdpa",
    )
    with torch.device(context.device):
        made = LlamaForCausalLM._from_config(config, dtype=context.dtype).eval()
    source = DummyWeights(model, context.dtype, context.device)
    parameters = dict(made.named_parameters())
    assert set(parameters) == source.names()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(source.load(name))
    return made


@dataclass(slots=True)
class Watched:
    """How a model computed: by which attention, and whether some of it was captured in CUDA graphs.

    Seen while it computes, since continuous batching sets other attention for as long as it runs.
    """

    attention: set[str] = field(default_factory=set)
    is_captured: bool = False

    def __str__(self) -> str:
        names = " and ".join(sorted(self.attention)) or "unknown"
        return f"{names} attention, {'with' if self.is_captured else 'without'} CUDA graphs"


def watch(model: Any) -> Watched:
    """From now on."""
    watched = Watched()

    def look(module: Any, _: object) -> None:
        watched.attention.add(module.config._attn_implementation)
        watched.is_captured |= torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

    model.base_model.register_forward_pre_hook(look)
    return watched


def tell_speed(
    context: Context,
    name: str,
    model: Any,
    generate: Generate,
    batch: int,
    *,
    runs: int = 1,
    target: float | None = None,
) -> None:
    """Tokens a second of whole runs at one batch size, prompts included; and ours beside them.

    ``generate`` takes prompts and the length of the answers, and gives how many tokens it generated.
    ``target``: how many times as fast ours has to be.
    """
    row = f"{name}, batch {batch}"
    with context.case(row):
        watched = watch(model)
        timing = Timing.of(_seconds(context, batch, generate, runs))
        rate = batch * context.scale.workload.output_len / timing.median_s
        told = f"{row} ({watched})"
        context.tell(told, rate, "tokens/s", spread=timing.spread if runs > 1 else None)
        context.tell_facts({name: str(watched)})
        ours = context.measured.get(speed_name(batch))
        if ours is None:
            raise RuntimeError("there is no figure of ours to compare it with")
        context.tell(f"tidegate, batch {batch}", ours, "tokens/s", beside=told, limit=rate, target=target)


def _seconds(context: Context, batch: int, generate: Generate, runs: int) -> Sequence[float]:
    """Of each run. Before them comes one that does not count."""
    workload, vocab_size = context.scale.workload, context.scale.model.vocab_size
    found = []
    for seed in (WARM_UP_SEED, *seeds(batch, runs)):
        asked = prompts(batch, workload.prompt_len, vocab_size, seed)
        started = time.perf_counter()
        count = generate(asked, workload.output_len)
        found.append(time.perf_counter() - started)
        if count != batch * workload.output_len:
            raise RuntimeError(f"{count} tokens came where {batch * workload.output_len} were asked for")
    return found[1:]
