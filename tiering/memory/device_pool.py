"""Memory of the device tier: HBM on a GPU, a bounded region of RAM on a CPU.

Runs on: step thread, once. The CPU region is mapped, not zeroed: pages are taken as blocks are first
written, in huge pages where the kernel gives them, so a large pool costs nothing until it is used.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

from tiering.memory.layout import KVLayout


def allocate_device_pool(
    layout: KVLayout, num_blocks: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The pool ``[num_blocks, num_layers, 2, kv_heads, block_size, head_dim]``; contents undefined.

    Takes ``num_blocks * layout.block_bytes`` bytes, rounded up to a page.
    """
    assert dtype.itemsize == layout.dtype_bytes
    shape = (num_blocks, *layout.block_shape)
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    # Private: a shared mapping is shmem, for which huge pages are a system setting of its own, mostly off.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    region = mmap.mmap(-1, num_blocks * layout.block_bytes, flags=flags)
    with contextlib.suppress(AttributeError, OSError):
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=dtype).view(shape)
