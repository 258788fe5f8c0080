"""Continuous batching of transformers on the same weights, at the judged batch, as it sets itself up.

It is loaded with torch's attention, and takes another by itself only if a package that it knows is installed:
which it took is in the name of its row. Where its version can keep what it set up (cache, graphs), that is
set up in the run before the timed ones.
"""

from __future__ import annotations

import inspect

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.transformers_models import NO_TOKEN, load_model, tell_speed

_TARGET = 3.0


def measure(context: Context) -> None:
    model = load_model(context)
    from transformers import GenerationConfig

    known = set(inspect.signature(model.generate_batch).parameters)
    kept: dict[str, object] = {"persistent_manager": True} if "persistent_manager" in known else {}
    if not context.on_gpu:  # where it would take most of the memory there is
        from transformers import ContinuousBatchingConfig

        kept["continuous_batching_config"] = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=32)

    def generate(prompts: list[list[int]], output_len: int) -> int:
        config = GenerationConfig(
            max_new_tokens=output_len, do_sample=False, eos_token_id=NO_TOKEN, pad_token_id=0
        )
        answers = model.generate_batch(inputs=prompts, generation_config=config, **kept)
        return sum(len(answer.generated_tokens) for answer in answers.values())

    batch, runs = context.scale.judged_batch, context.scale.workload.runs
    tell_speed(context, "transformers continuous batching", model, generate, batch, runs=runs, target=_TARGET)
