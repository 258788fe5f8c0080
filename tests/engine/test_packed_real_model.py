"""Quality is not traded for speed: the built-in model by its quantized weights, against torch in float32."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch

from engine.execution.batch import build_model_input
from engine.loading.checkpoint import open_checkpoint
from engine.loading.packed_weights import pack_weights
from engine.models.llama import Decoder
from engine.packed.llama import MixedLlama, PackedLlama
from engine.packed.products import has_byte_products
from engine.schedule import SchedulerOutput
from tests.support import reference
from tests.support.tiny_models import CPU, Loaded

TEXT = (
    "A tide gate is a simple thing. It lets the river out while the sea is low, and when the water "
    "outside rises it closes by itself, with no motor and nobody to watch it. People who live behind "
    "one think of it about twice a year, when a storm is in the news. The engineer who looks after it "
    "thinks of it more often: a branch caught in the hinge is enough, and the meadows are salt for a "
    "decade. So she walks there every week with a rake and a grease gun, writes down what she found, "
    "and is told now and then that the gate could be replaced by something with sensors. She agrees "
    "that it could. What she has learned is that most machines fail where two materials meet, that "
    "water is patient, and that a thing which needs no power will still work on the night when there is "
    "none.\n\n"
    "def closing_time(levels, river):\n"
    "    for minute, level in enumerate(levels):\n"
    "        if level > river:\n"
    "            return minute\n"
    "    return None\n"
)
LICENSE = (Path(__file__).parent.parent.parent / "LICENSE").read_text()[:2500]
MAX_ROWS = 32


@cache
def logits(
    dtype: torch.dtype, kind: str, chunk: int, text: str = TEXT, *, of_bytes: bool = False
) -> torch.Tensor:
    """Of every position of ``text``, computed ``chunk`` rows at a time."""
    opened = open_checkpoint("", "auto", 0)
    loaded = Loaded(opened, dtype)
    model: Decoder = loaded.model
    if kind != "torch":
        weights = pack_weights(opened.config, opened.tensors, lambda *_: None)
        assert weights is not None
        packed = PackedLlama(weights, loaded.model, MAX_ROWS, threads=1, of_bytes=of_bytes)
        model = packed if kind == "packed" else MixedLlama(packed, loaded.model, MAX_ROWS)
    tokens = reference.tokenizer().encode(text)
    sizes = [min(chunk, len(tokens) - start) for start in range(0, len(tokens), chunk)]
    parts = []
    with torch.inference_mode():
        for step in loaded.chunks(tokens, sizes):
            inputs = build_model_input(SchedulerOutput((step,)), loaded.block_size, CPU)
            parts.append(model.logits(model.hidden(inputs)))
    return torch.cat(parts)


def losses(found: torch.Tensor, text: str) -> torch.Tensor:
    tokens = torch.tensor(reference.tokenizer().encode(text))
    return torch.nn.functional.cross_entropy(found[:-1], tokens[1:], reduction="none")


def test_in_float32_logits_are_those_of_torch_but_for_rounding() -> None:
    exact, found = logits(torch.float32, "torch", 512), logits(torch.float32, "packed", MAX_ROWS)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-4 * float(exact.abs().max()))
    assert torch.equal(found.argmax(1), exact.argmax(1))


@pytest.mark.parametrize(("kind", "chunk"), [("packed", MAX_ROWS), ("mixed", 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_perplexity_is_within_one_percent_of_float32(dtype: torch.dtype, kind: str, chunk: int) -> None:
    """By the coarsest products that the CPU has, over two texts: of one alone more would be chance."""
    exact_losses, found_losses, agrees = [], [], []
    for text in (TEXT, LICENSE):
        exact = logits(torch.float32, "torch", 512, text)
        found = logits(dtype, kind, chunk, text, of_bytes=has_byte_products())
        exact_losses.append(losses(exact, text))
        found_losses.append(losses(found, text))
        agrees.append(found.argmax(1) == exact.argmax(1))
    exact_perplexity, perplexity = (
        math.exp(torch.cat(parts).mean().item()) for parts in (exact_losses, found_losses)
    )
    agreement = torch.cat(agrees).float().mean()
    print(f"{kind}: perplexity {perplexity:.4f} of {exact_perplexity:.4f}, greedy {agreement:.4f}")
    assert perplexity == pytest.approx(exact_perplexity, rel=0.01)
    assert agreement > 0.93
