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
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

from engine.attention import cpu_decode, cpu_prompt, cpu_rotate
from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionShape
from engine.attention.cpu_work import split_decodes
from engine.compiled.jit import sources_digest
from engine.compiled.vectors import LANES

Floats = npt.NDArray[np.float32]

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


def split_work(metadata: AttentionMetadata, first: int = 0) -> npt.NDArray[np.int64]:
    """Rows ``[W, 4]`` of (sequence, first row, number of rows, position), the costliest first.

    Of sequences from ``first`` on; their rows are counted from 0.
    """
    starts = metadata.query_start.numpy().astype(np.int64)[first:]
    starts -= starts[0]
    lengths = np.diff(starts)
    pieces = -(-lengths // cpu_prompt.QUERY_BLOCK)
    sequence = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    offset = piece * cpu_prompt.QUERY_BLOCK
    count = np.minimum(lengths[sequence] - offset, cpu_prompt.QUERY_BLOCK)
    position = metadata.context_start.numpy().astype(np.int64)[first:][sequence] + offset
    order = np.argsort(-(position + count) * count, kind="stable")
    work = np.stack([first + sequence, starts[sequence] + offset, count, position], axis=1)
    return work[order]


class CpuAttention(AttentionBackend):
    """Paged attention on ``threads`` cores over a float32 or bfloat16 pool.

    Sequences of one row go through a kernel of their own, which gives the bits that the other gives.
    """

    name = "cpu-numba"

    @property
    def arithmetic(self) -> str:
        return f"{self.name} {sources_digest(Path(__file__).parent)}"

    def __init__(self, pool: torch.Tensor, shape: AttentionShape, threads: int) -> None:
        numba.config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]
        assert pool.is_contiguous() and pool.device.type == "cpu" and is_supported(pool.dtype)
        self._pool = _bits(pool)
        self._shape = shape
        self._threads = min(threads, numba.config.NUMBA_NUM_THREADS)
        self._scale = np.float32(_LOG2_E / math.sqrt(shape.head_dim))
        self._window = shape.sliding_window or NO_WINDOW
        self._decodes = pool.shape[4] % LANES == 0 and pool.shape[5] % LANES == 0

    def begin_step(self, metadata: AttentionMetadata, cos: torch.Tensor, sin: torch.Tensor) -> None:
        numba.set_num_threads(self._threads)  # numba keeps this count per calling thread
        first = self._num_decodes = metadata.num_decodes if self._decodes else 0
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._slots = metadata.slot_mapping.numpy()
        self._tables = metadata.block_tables.numpy()
        self._positions = metadata.context_start.numpy()
        if first:
            heads, window = self._shape.num_kv_heads, self._window
            self._decode_work = split_decodes(self._positions[:first], heads, window, self._threads)
        if first < len(self._slots):
            self._work = split_work(metadata, first)
            num_queries = (len(self._slots) - first) * self._shape.group_size
            dims = (self._shape.num_kv_heads, num_queries, self._shape.head_dim)
            self._query = np.empty(dims, np.float32)

    def forward(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Of float32 ``qkv``, or of the pool's type; the answer is of the same. Kernels get float32.

        Prompts' K and V are stored first: a decode may read what a prompt of its step stores.
        """
        num_rows, first = len(qkv), self._num_decodes
        result = torch.empty((num_rows, self._shape.num_heads, self._shape.head_dim))
        rows, out = qkv.float().numpy(), result.numpy()
        if first < num_rows:
            self._store(layer, rows[first:])
        if first:
            self._decode(layer, rows, out)
        if first < num_rows:
            cpu_prompt.attend(
                self._query, self._pool, layer, self._tables, self._work, self._window,
                out[first:], self._threads,
            )  # fmt: skip
        return result.view(num_rows, -1).to(qkv.dtype)

    def _store(self, layer: int, qkv: Floats) -> None:
        """Q, K and V of the rows behind the decodes."""
        first = self._num_decodes
        cpu_rotate.rotate_and_store(
            qkv, self._cos[first:], self._sin[first:], self._slots[first:], self._pool, layer,
            self._query, self._scale, self._threads if len(qkv) >= _MIN_PARALLEL_ROWS else 1,
        )  # fmt: skip

    def _decode(self, layer: int, qkv: Floats, out: Floats) -> None:
        work = self._decode_work
        cpu_decode.decode(
            qkv, self._cos, self._sin, self._slots, self._tables, self._positions,
            work.runs, work.bounds, work.split, self._pool, layer, self._scale, self._window,
            out, work.num_places,
        )  # fmt: skip
