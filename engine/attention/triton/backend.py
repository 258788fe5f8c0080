"""GPU attention: Triton kernels over the block-major pool, decodes and all others in a launch each.

Runs on: step thread. Blocks: never; nothing is read back, and all that varies in a step is on the device,
so a step may be captured in a CUDA graph and replayed over other contents of the same tensors. Buffers are
made in the constructor; what ``forward`` allocates is what it returns, and the rotated Q.
"""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionShape
from engine.attention.triton.combine import combine
from engine.attention.triton.configs import KernelShape, extend_tile, invariant_tile, programs_at_once
from engine.attention.triton.decode import decode
from engine.attention.triton.extend import extend
from engine.attention.triton.rotate_store import rotate_store
from engine.attention.triton.splits import SplitPlan

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)


def is_supported(shape: AttentionShape, dtype: torch.dtype) -> bool:
    """Whether the kernels know this model."""
    return dtype in _DTYPES and shape.head_dim in _HEAD_DIMS


def kernel_shape(pool: torch.Tensor, shape: AttentionShape) -> KernelShape:
    """What is fixed by a pool ``[N, L, 2, Hkv, block_size, D]``, whatever its strides, and a model."""
    block_stride, _, part_stride, head_stride, slot_stride, element_stride = pool.stride()
    assert element_stride == 1 and pool.shape[3] == shape.num_kv_heads and pool.shape[5] == shape.head_dim
    return KernelShape(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=pool.shape[4],
        element_bytes=pool.element_size(),
        block_stride=block_stride,
        part_stride=part_stride,
        head_stride=head_stride,
        slot_stride=slot_stride,
        window=shape.sliding_window or 0,
        has_warpgroups=not pool.is_cuda or torch.cuda.get_device_capability(pool.device)[0] >= 9,
    )


class TritonAttention(AttentionBackend):
    """Paged attention on a GPU for steps of up to ``max_num_seqs`` decodes.

    With ``batch_invariant`` a row's result depends on the row and its context alone, bit for bit: all rows
    are computed by one kernel in one tile, which is slower where there are few.
    """

    def __init__(
        self,
        pool: torch.Tensor,
        shape: AttentionShape,
        *,
        max_num_seqs: int,
        batch_invariant: bool = False,
        num_multiprocessors: int,
    ) -> None:
        assert is_supported(shape, pool.dtype)
        self.name = "triton-batch-invariant" if batch_invariant else "triton"
        self._shape = kernel_shape(pool, shape)
        self._layers = [pool[:, layer] for layer in range(pool.shape[1])]
        self._batch_invariant = batch_invariant
        at_once = programs_at_once(self._shape, num_multiprocessors)
        self._splits = SplitPlan.allocate(self._shape, max_num_seqs, at_once, pool.device)

    def begin_step(self, metadata: AttentionMetadata, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._metadata = metadata
        self._cos, self._sin = cos, sin
        self._num_decodes = 0 if self._batch_invariant else metadata.num_decodes
        if self._num_decodes:
            self._splits.make(metadata.seq_lens, self._num_decodes, self._shape)

    def forward(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape, kv, metadata = self._shape, self._layers[layer], self._metadata
        query = qkv.new_empty((qkv.shape[0], shape.num_heads, shape.head_dim))
        rotate_store(qkv, self._cos, self._sin, metadata.slot_mapping, query, kv, shape)
        out = torch.empty_like(query)
        if self._num_decodes:
            decode(query, kv, metadata.block_tables, self._splits, self._num_decodes, out, None, shape)
            combine(self._splits, self._num_decodes, out, None, shape)
        if self._num_decodes < metadata.seq_lens.shape[0]:
            self._extend(query, kv, out)
        return out.view(qkv.shape[0], -1)

    def _extend(self, query: torch.Tensor, kv: torch.Tensor, out: torch.Tensor) -> None:
        shape, metadata, first = self._shape, self._metadata, self._num_decodes
        if self._batch_invariant:
            tile = invariant_tile(shape)
        else:
            num_seqs = metadata.seq_lens.shape[0] - first
            tile = extend_tile(shape, (query.shape[0] - first) // num_seqs)
        extend(query, kv, metadata, first, out, None, shape, tile, batch_invariant=self._batch_invariant)
