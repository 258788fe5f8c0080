"""Attention of decodes on a CPU: ``python -m benchmarks.cpu_attention``.

A layer of SmolLM2-135M's shape over a bfloat16 pool, by the kernel of decodes, by that of prompts, which
can do the same rows, and reading as many bytes alone. They take turns over so many sequences that no
cache holds their K and V. Milliseconds a layer are medians; ratios are those of turns one after the other.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import prange

from benchmarks.report import interval_95, print_table, write_json
from engine.attention.base import AttentionMetadata, AttentionShape
from engine.attention.cpu import CpuAttention
from engine.compiled.jit import jit
from tiering.memory.device_pool import allocate_device_pool
from tiering.memory.layout import KVLayout

SHAPE = AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64)
BATCHES = tuple((rows, context) for context in (256, 1024) for rows in (1, 4, 16, 64))
BLOCK_SIZE = 16
NUM_LAYERS = 30
_POOL_BYTES = 256 << 20  # at least; more than the caches of most machines


@jit()
def _sum(words: Any) -> Any:
    total = np.uint64(0)
    for index in range(len(words)):
        total += words[index]
    return total


@jit(parallel=True)
def _read(words: Any, lanes: int) -> Any:
    """Sums of ``words``, of which each lane reads as many as another."""
    totals = np.zeros(lanes, np.uint64)
    for lane in prange(lanes):
        totals[lane] = _sum(words[lane * len(words) // lanes : (lane + 1) * len(words) // lanes])
    return totals


@dataclass(frozen=True, slots=True)
class Turn:
    """What all steps took, a layer."""

    wall_ms: float
    cpu_ms: float


class Bench:
    """``rows`` decodes of ``context`` tokens each, in shuffled blocks, with other sequences every step."""

    def __init__(self, rows: int, context: int, threads: int) -> None:
        layout = KVLayout(NUM_LAYERS, SHAPE.num_kv_heads, BLOCK_SIZE, SHAPE.head_dim, dtype_bytes=2)
        self.layer_bytes = rows * context * layout.token_bytes // NUM_LAYERS
        num_steps = -(-_POOL_BYTES // (self.layer_bytes * NUM_LAYERS))
        num_blocks = num_steps * rows * context // BLOCK_SIZE
        cpu = torch.device("cpu")
        self._pool = allocate_device_pool(layout, num_blocks, torch.bfloat16, cpu).uniform_(-1, 1)
        bits = self._pool.view(torch.uint16).numpy()
        self._words = bits.reshape(num_steps * NUM_LAYERS, -1).view(np.uint64)
        self._qkv = torch.randn(rows, SHAPE.qkv_size)
        self._threads = threads
        tables = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).int()
        steps = [_metadata(step) for step in tables.view(num_steps, rows, -1)]
        self._decodes = [self._backend(step) for step in steps]
        self._prompts = [self._backend(replace(step, num_decodes=0)) for step in steps]

    def _backend(self, metadata: AttentionMetadata) -> CpuAttention:
        backend = CpuAttention(self._pool, SHAPE, self._threads)
        angles = torch.rand(metadata.num_decodes or len(metadata.seq_lens), SHAPE.head_dim // 2)
        backend.begin_step(metadata, angles.cos(), angles.sin())
        return backend

    def turns(self) -> dict[str, Turn]:
        """All steps each way."""
        return {
            "bytes": self._timed(
                lambda step, layer: _read(self._words[step * NUM_LAYERS + layer], self._threads)
            ),
            "decodes": self._timed(lambda step, layer: self._decodes[step].forward(layer, self._qkv)),
            "prompts": self._timed(lambda step, layer: self._prompts[step].forward(layer, self._qkv)),
        }

    def _timed(self, way: Callable[[int, int], object]) -> Turn:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for step, layer in itertools.product(range(len(self._decodes)), range(NUM_LAYERS)):
            way(step, layer)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        count = len(self._decodes) * NUM_LAYERS
        return Turn(wall_s / count * 1e3, cpu_s / count * 1e3)


def _metadata(tables: torch.Tensor) -> AttentionMetadata:
    """Of decodes whose contexts fill their ``tables``."""
    rows, num_blocks = tables.shape
    last = torch.full((rows,), num_blocks * BLOCK_SIZE - 1, dtype=torch.int32)
    return AttentionMetadata(
        query_start=torch.arange(rows + 1, dtype=torch.int32),
        context_start=last,
        seq_lens=last + 1,
        block_tables=tables,
        slot_mapping=tables[:, -1] * BLOCK_SIZE + BLOCK_SIZE - 1,
        num_decodes=rows,
    )


def measure(rows: int, context: int, threads: int, num_rounds: int) -> dict[str, Any]:
    """Medians of the ways, and of the ratios of turns of one round."""
    bench = Bench(rows, context, threads)
    bench.turns()
    rounds = [bench.turns() for _ in range(num_rounds)]
    found: dict[str, Any] = {"rows": rows, "context": context, "layer_bytes": bench.layer_bytes}
    for name in rounds[0]:
        turns = [asdict(turn[name]) for turn in rounds]
        found[name] = {unit: statistics.median(turn[unit] for turn in turns) for unit in turns[0]}
    for name, over in (("decodes", "prompts"), ("decodes", "bytes")):
        ratios = [turn[name].wall_ms / turn[over].wall_ms for turn in rounds]
        lower, upper = interval_95(ratios)
        found[f"{name}/{over}"] = {"median": statistics.median(ratios), "lower_95": lower, "upper_95": upper}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = [measure(*batch, options.threads, options.rounds) for batch in BATCHES]
    ways, ratios = ("bytes", "decodes", "prompts"), ("decodes/prompts", "decodes/bytes")
    table = [
        (
            f"{result['rows']} × {result['context']}",
            *(f"{result[way]['wall_ms']:.3f} ({result[way]['cpu_ms']:.3f})" for way in ways),
            *(f"{result[ratio]['median']:.2f}" for ratio in ratios),
            f"{result['layer_bytes'] / result['decodes']['wall_ms'] / 1e6:.1f}",
        )
        for result in results
    ]
    columns = ("rows × context", *(f"{way} ms (CPU)" for way in ways), *ratios, "GB/s")
    print_table(f"Attention of decodes, a layer, {options.threads} threads", columns, table)
    write_json(options.json, {"threads": options.threads, "batches": results})


if __name__ == "__main__":
    main()
