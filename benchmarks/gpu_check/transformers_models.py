"""The model of a check as transformers makes it, with the weights that ours has; how fast it generates."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.dummy_weights import DummyWeights
from benchmarks.gpu_check.workload import prompts, speed_name

NO_TOKEN = -1  # for an end of text that never comes
Generate = Callable[[list[list[int]], int], int]
Renew = Callable[[], None]


def _nothing() -> None:
    pass


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


def tell_speeds(
    context: Context, name: str, generate: Generate, target: float | None = None, renew: Renew = _nothing
) -> None:
    """Tokens a second of whole runs, prompts included; and ours beside them.

    ``generate`` takes prompts and the length of the answers, and gives how many tokens it generated.
    ``renew`` is called before it sees another batch size. ``target``: how many times as fast ours has to be,
    at the batch that is judged.
    """
    scale = context.scale
    workload = scale.workload
    for batch in sorted(workload.batches, key=lambda batch: (batch != scale.judged_batch, batch)):
        row = f"{name}, batch {batch}"
        with context.case(row):
            renew()
            rate = _speed(context, batch, generate)
            context.tell(row, rate, "tokens/s")
            ours = context.measured.get(speed_name(batch))
            if ours is None:
                raise RuntimeError("there is no figure of ours to compare it with")
            wanted = target if batch == scale.judged_batch else None
            context.tell(f"tidegate, batch {batch}", ours, "tokens/s", beside=row, limit=rate, target=wanted)


def _speed(context: Context, batch: int, generate: Generate) -> float:
    workload, vocab_size = context.scale.workload, context.scale.model.vocab_size
    for seed in (2 * batch, 2 * batch + 1):  # the first is not timed
        asked = prompts(batch, workload.prompt_len, vocab_size, seed)
        started = time.perf_counter()
        count = generate(asked, workload.output_len)
        seconds = time.perf_counter() - started
    if count != batch * workload.output_len:
        raise RuntimeError(f"{count} tokens came where {batch * workload.output_len} were asked for")
    return count / seconds
