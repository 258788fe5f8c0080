"""The Llama family with quantized weights, on a CPU: for steps of few rows, or for all.

Runs on: step thread. A step of few rows is bound by how fast weights can be read, so it reads them as they
are stored, four or eight bits each. What torch would do in some three hundred calls, each with a result to
allocate, is three calls of compiled code a layer here, into arrays that are made once. For more rows torch's
products, of weights in the model's dtype, may be faster: ``MixedLlama`` takes either, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.compiled.jit import sources_digest
from engine.models.llama import LlamaModel, ModelInput
from engine.packed import kernels
from engine.packed.layout import GROUP
from engine.packed.products import has_byte_products, has_wide_registers
from engine.packed.weights import Floats, PackedWeights


def multiplies_bytes(dtype: str) -> bool:
    """Whether products are of bytes, if ``dtype`` was asked for: who wants float32 gets no less."""
    return dtype != "float32" and has_byte_products()


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """Which steps read quantized weights, and how."""

    max_rows: int  # of the largest of them
    are_all: bool  # no step has more rows
    of_bytes: bool  # products are of rows rounded to bytes

    @property
    def arithmetic(self) -> str:
        """Changes with anything that may change a bit of a result, on one kind of CPU."""
        return f"{self.kind} {sources_digest(Path(__file__).parent)}"

    @property
    def kind(self) -> str:
        return f"packed {'bytes' if self.of_bytes else 'floats'}"


def packed_steps(dtype: str, longest: int, *, must_be_all: bool) -> PackedSteps:
    """Of an engine that was asked for ``dtype``, and whose steps have up to ``longest`` rows."""
    of_bytes = multiplies_bytes(dtype)
    most = _most_rows(of_bytes)
    if must_be_all or most is None or longest <= most:
        return PackedSteps(longest, True, of_bytes)
    return PackedSteps(most, False, of_bytes)


def _most_rows(of_bytes: bool) -> int | None:
    """Rows of a step beyond which torch's products are faster. None: they never are.

    By trials. On two cores of an AMD Zen 5, at 128 rows torch took 1.2 times as long in bfloat16 and 1.8
    times in float32. On a Zen 3, which has AVX2 and no bfloat16, at 512 rows its float32 took 1.8 times as
    long as products of bytes with weights of four bits, and as long with eight. Lesser were not tried, nor
    float32 in registers of 256 bits.
    """
    if has_wide_registers():
        return 128
    return None if of_bytes else 8


class _Room:
    """Rows of one width, made ready for a product. Made once, for the most rows of a step."""

    def __init__(self, max_rows: int, width: int, dtype: type[np.generic]) -> None:
        self._x = np.empty((max_rows, width), dtype)
        self._stats = np.empty((max_rows, width // GROUP, 2), np.float32)

    def of(self, num_rows: int) -> tuple[npt.NDArray[Any], Floats]:
        assert num_rows <= len(self._x)  # kernels check no bounds
        return self._x[:num_rows], self._stats[:num_rows]


class PackedLlama:
    """Rows in, logits out, for at most ``max_rows`` rows, in ``threads`` parts.

    Embedding, RoPE and attention are those of ``plain``, which has the same weights but need have no layers,
    and so is a head that is not packed. ``of_bytes``: products are of rows rounded to bytes.
    """

    def __init__(
        self, weights: PackedWeights, plain: LlamaModel, max_rows: int, threads: int, *, of_bytes: bool
    ) -> None:
        self._weights = weights
        self._plain = plain
        self._embedding = plain.weights.embedding
        self._rope = plain.rope
        self._attention = plain.attention
        self._threads = threads
        self.vocab_size = plain.vocab_size
        self._eps = np.float32(weights.eps)
        dtype = np.int8 if of_bytes else np.float32
        self._narrow = _Room(max_rows, weights.qkv.num_inputs, dtype)
        self._attended = _Room(max_rows, weights.output.num_inputs, dtype)
        self._wide = _Room(max_rows, weights.down.num_inputs, dtype)
        self._activated = np.empty((max_rows, weights.down.num_inputs), np.float32)
        self._qkv = torch.empty((max_rows, weights.qkv.num_outputs))

    def hidden(self, inputs: ModelInput) -> torch.Tensor:
        """The last layer's output ``[T, H]`` float32."""
        self._attention.begin_step(inputs.attention, *self._rope.at(inputs.positions))
        result = self._embedding[inputs.token_ids].float()
        num_rows = len(result)
        hidden, qkv = result.numpy(), self._qkv[:num_rows]
        for layer in range(self._weights.num_layers):
            self._project_qkv(layer, hidden, qkv.numpy())
            attended = self._attention.forward(layer, qkv)
            self._add_attended(layer, attended.numpy(), hidden)
            self._add_mlp(layer, hidden)
        return result

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits ``[R, V]`` float32 of rows ``[R, H]`` of the hidden state."""
        weights, head = self._weights, self._weights.lm_head
        if head is None:
            return self._plain.logits(rows)
        logits = torch.empty((len(rows), head.num_outputs))
        if not len(rows):
            return logits
        kernels.project_normed(
            rows.numpy(), weights.norm, self._eps, head.tiles[0], head.bits, head.scales,
            *self._narrow.of(len(rows)), logits.numpy(), self._threads,
        )  # fmt: skip
        return logits

    def _project_qkv(self, layer: int, hidden: Floats, out: Floats) -> None:
        weights = self._weights
        kernels.project_normed(
            hidden, weights.input_norms[layer], self._eps,
            weights.qkv.tiles[layer], weights.qkv.bits, weights.qkv.scales,
            *self._narrow.of(len(hidden)), out, self._threads,
        )  # fmt: skip

    def _add_attended(self, layer: int, attended: Floats, hidden: Floats) -> None:
        output = self._weights.output
        kernels.add_projected(
            attended, output.tiles[layer], output.bits, output.scales,
            *self._attended.of(len(hidden)), hidden, self._threads,
        )  # fmt: skip

    def _add_mlp(self, layer: int, hidden: Floats) -> None:
        weights, num_rows = self._weights, len(hidden)
        kernels.add_mlp(
            hidden, weights.post_attention_norms[layer], self._eps,
            weights.gate_up.tiles[layer], weights.gate_up.bits, weights.gate_up.scales,
            weights.down.tiles[layer], weights.down.bits, weights.down.scales,
            *self._narrow.of(num_rows), self._activated[:num_rows], *self._wide.of(num_rows), self._threads,
        )  # fmt: skip


class MixedLlama:
    """Steps of up to ``max_rows`` rows by quantized weights, larger ones by torch. The same model twice."""

    def __init__(self, packed: PackedLlama, plain: LlamaModel, max_rows: int) -> None:
        self._packed = packed
        self._plain = plain
        self._max_rows = max_rows
        self.vocab_size = plain.vocab_size

    def hidden(self, inputs: ModelInput) -> torch.Tensor:
        """The last layer's output ``[T, H]`` float32, of which ``logits`` may be taken."""
        model = self._packed if len(inputs.token_ids) <= self._max_rows else self._plain
        return model.hidden(inputs)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits ``[R, V]`` float32 of rows ``[R, H]`` of the hidden state."""
        return (self._packed if len(rows) <= self._max_rows else self._plain).logits(rows)
