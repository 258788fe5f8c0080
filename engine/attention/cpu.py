"""CPU attention: numba kernels that read K/V in place through the block table.

Runs on: step thread, plus numba's workers inside a call. Blocks: for the length of a call.
Threading layer: OpenMP, chosen on purpose. A parallel call costs about 2 us in it, against 100 us and
more in numba's own ``workqueue``, whose workers sleep and must be woken for each of the 60 calls of a
step. Its runtime is not torch's copy, and both let their workers spin after a call: harmless on free
cores, ruinous on shared ones, so ``engine.process`` keeps the spinning short. Where the system has no
libgomp, numba takes ``workqueue``, which allows one calling thread: the step thread.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

from engine.attention import cpu_kernels
from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionShape

NO_WINDOW = 1 << 60
_LOG2_E = 1.4426950408889634
_MIN_PARALLEL_ROWS = 64  # below this, waking workers costs more than rotating rows takes


def is_supported(dtype: torch.dtype) -> bool:
    """Whether the kernels know this pool format."""
    return dtype in (torch.float32, torch.bfloat16)


def _bits(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """numpy's view of a tensor; bf16, which numpy lacks, as uint16."""
    array: npt.NDArray[Any] = (
        tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
    ).numpy()
    return array


def split_work(metadata: AttentionMetadata) -> npt.NDArray[np.int64]:
    """Rows ``[W, 4]`` of (sequence, first row, number of rows, position), the costliest first."""
    starts = metadata.query_start.numpy().astype(np.int64)
    lengths = np.diff(starts)
    pieces = -(-lengths // cpu_kernels.QUERY_BLOCK)
    sequence = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    offset = piece * cpu_kernels.QUERY_BLOCK
    count = np.minimum(lengths[sequence] - offset, cpu_kernels.QUERY_BLOCK)
    position = metadata.context_start.numpy().astype(np.int64)[sequence] + offset
    order = np.argsort(-(position + count) * count, kind="stable")
    work: npt.NDArray[np.int64] = np.stack([sequence, starts[sequence] + offset, count, position], axis=1)
    return work[order]


class CpuAttention(AttentionBackend):
    """Paged attention on ``threads`` cores over a float32 or bfloat16 pool."""

    name = "cpu-numba"

    def __init__(self, pool: torch.Tensor, shape: AttentionShape, threads: int) -> None:
        numba.config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]
        assert pool.is_contiguous() and pool.device.type == "cpu" and is_supported(pool.dtype)
        self._pool = _bits(pool)
        self._shape = shape
        self._threads = min(threads, numba.config.NUMBA_NUM_THREADS)
        self._scale = np.float32(_LOG2_E / math.sqrt(shape.head_dim))
        self._window = shape.sliding_window or NO_WINDOW

    def begin_step(self, metadata: AttentionMetadata, cos: torch.Tensor, sin: torch.Tensor) -> None:
        numba.set_num_threads(self._threads)  # numba keeps this count per calling thread
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._slots = metadata.slot_mapping.numpy()
        self._tables = metadata.block_tables.numpy()
        self._work = split_work(metadata)
        self._query = np.empty((len(self._slots), self._shape.num_heads, self._shape.head_dim), np.float32)

    def forward(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        num_rows = qkv.shape[0]
        out = torch.empty((num_rows, self._shape.num_heads, self._shape.head_dim), dtype=qkv.dtype)
        cpu_kernels.rotate_and_store(
            _bits(qkv), self._cos, self._sin, self._slots, self._pool, layer, self._query, self._scale,
            self._threads if num_rows >= _MIN_PARALLEL_ROWS else 1,
        )  # fmt: skip
        cpu_kernels.attend(
            self._query, self._pool, layer, self._tables, self._work, self._window, _bits(out), self._threads
        )
        return out.view(num_rows, -1)
