"""``generate`` of transformers on the same weights: one batch of equal prompts, greedy, its usual cache."""

from __future__ import annotations

import torch

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.transformers_models import load_model, tell_speed


def measure(context: Context) -> None:
    model = load_model(context)

    def generate(prompts: list[list[int]], output_len: int) -> int:
        ids = torch.tensor(prompts, device=context.device)
        with torch.inference_mode():
            whole = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=output_len,
                min_new_tokens=output_len,
                do_sample=False,
                pad_token_id=0,
            )
        return int(whole[:, ids.shape[1] :].numel())  # looks at the result, so all of it is there

    scale = context.scale
    for batch in sorted(scale.workload.batches, key=lambda batch: (batch != scale.judged_batch, batch)):
        runs = scale.workload.runs if batch == scale.judged_batch else 1
        tell_speed(context, "transformers generate", model, generate, batch, runs=runs)
