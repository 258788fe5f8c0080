"""What the machine can do at this moment: products of the model's shapes by torch, copies, and a fixed probe.

The weights are random, for each layer its own, so that no cache holds them from step to step. Blocks: for as
long as it takes to measure, a few hundred milliseconds a call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.cpu_engine.asked import Load
from benchmarks.cpu_engine.floor import Constants, Probe
from engine.config import ModelConfig
from engine.models.layers import PrepackedLinear, TorchLinear

_CHUNK = 512  # rows of a prefill step
_GROUP = 32  # weights that share a scale, as in Q4_1
_BYTES = 256 * 2**20  # far more than any cache holds
_REPEATS = 5
_PROBE_REPEATS = 40  # about a second: what lasts for less is no change of the machine
_PROBE_SHAPE = (512, 2048, 2048)  # rows, in, out
_NAMES = {torch.bfloat16: "bf16", torch.float32: "float32"}
Product = Callable[[torch.Tensor], torch.Tensor]


class Rates:
    """Of ``threads`` threads, for a model of these shapes. Holds its weights in every format.

    ``dtype`` is what the CPU multiplies fastest: bfloat16, or float32 where oneDNN has no bfloat16 for it.
    """

    def __init__(self, model: ModelConfig, threads: int) -> None:
        torch.set_num_threads(threads)
        shapes = _shapes(model)
        layers, head = shapes * model.num_layers, (model.vocab_size, model.hidden_size)
        self.dtype = product_dtype()
        self._layers = [self._prepacked(shape) for shape in layers]
        self._inputs = [shape[1] for shape in (*layers, head)]
        self._formats: dict[str, list[Product]] = {
            _NAMES[self.dtype]: [*self._layers, self._prepacked(head)],
            "int8": [packed_int8(torch.randn(shape), self.dtype) for shape in (*layers, head)],
            "int4": [packed_int4(shape, self.dtype) for shape in (*layers, head)],
        }
        kv_token_bytes = 2 * self.dtype.itemsize * model.num_layers * model.num_kv_heads * model.head_dim
        self._kv_token_bytes = kv_token_bytes
        self._source = torch.ones(_BYTES // 4)
        self._target = torch.empty_like(self._source)
        self._probe_input = torch.randn(_PROBE_SHAPE[:2]).to(self.dtype)
        self._probe_weight = torch.randn(_PROBE_SHAPE[2], _PROBE_SHAPE[1]).to(self.dtype)

    @torch.inference_mode()
    def probe(self) -> Probe:
        matmul_s = _median_s(lambda: F.linear(self._probe_input, self._probe_weight), _PROBE_REPEATS)
        read_s = _median_s(self._source.sum, _PROBE_REPEATS)
        return Probe(2 * math.prod(_PROBE_SHAPE) / matmul_s, _BYTES / read_s)

    @torch.inference_mode()
    def constants(self, load: Load) -> Constants:
        """What this load's floor is made of."""
        rows = min(_CHUNK, load.users * load.input_len)
        chunk_s = _median_s(lambda: self._run(self._layers, rows))
        return Constants(
            prefill_tokens_s=rows / chunk_s,
            products_s={name: self.products_s(name, load.users) for name in self._formats},
            copied_bytes_s=2 * _BYTES / _median_s(lambda: self._target.copy_(self._source)),
            kv_token_bytes=self._kv_token_bytes,
            prefill_format=_NAMES[self.dtype],
        )

    @torch.inference_mode()
    def products_s(self, name: str, rows: int) -> float:
        """Of all of a step's products, of which each has so many rows."""
        return _median_s(lambda: self._run(self._formats[name], rows))

    def _run(self, products: list[Product], rows: int) -> None:
        inputs = {size: torch.ones((rows, size), dtype=self.dtype) for size in set(self._inputs)}
        for product, size in zip(products, self._inputs, strict=False):
            product(inputs[size])

    def _prepacked(self, shape: tuple[int, int]) -> Product:
        return prepacked(torch.randn(shape).to(self.dtype))


def _shapes(model: ModelConfig) -> list[tuple[int, int]]:
    """Of a layer's products as the engine has them, ``[out, in]``."""
    attention = model.num_heads * model.head_dim
    return [
        (attention + 2 * model.num_kv_heads * model.head_dim, model.hidden_size),
        (model.hidden_size, attention),
        (2 * model.intermediate_size, model.hidden_size),
        (model.hidden_size, model.intermediate_size),
    ]


def product_dtype() -> torch.dtype:
    """bfloat16 where oneDNN has it for this CPU, else float32."""
    has_bfloat16 = PrepackedLinear.is_possible(torch.empty(0, dtype=torch.bfloat16))
    return torch.bfloat16 if has_bfloat16 else torch.float32


def prepacked(weight: torch.Tensor) -> Product:
    """In the layout that oneDNN's product wants, as ``torch.compile`` packs weights that it may freeze.

    Float32 stays as it is: torch's product has no other layout for it.
    """
    return PrepackedLinear(weight) if PrepackedLinear.is_possible(weight) else TorchLinear(weight)


def packed_int8(weight: torch.Tensor, dtype: torch.dtype) -> Product:
    """``dtype``: of the rows that it takes and gives."""
    ops: Any = torch.ops.aten
    scales = weight.abs().amax(dim=1) / 127
    rounded = (weight / scales[:, None]).round().to(torch.int8)
    return lambda x: ops._weight_int8pack_mm(x, rounded, scales.to(dtype))


def packed_int4(shape: tuple[int, int], dtype: torch.dtype) -> Product:
    """Of random weights: with a scale and a zero for each group, as Q4_1 has them."""
    ops: Any = torch.ops.aten
    packed = ops._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, shape, dtype=torch.int32), 1)
    scales = torch.rand((shape[1] // _GROUP, shape[0], 2)).to(dtype)
    return lambda x: ops._weight_int4pack_mm_for_cpu(x, packed, _GROUP, scales)


def _median_s(work: Callable[[], object], repeats: int = _REPEATS) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
