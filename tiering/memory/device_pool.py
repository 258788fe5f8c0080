"""Memory of the device tier: HBM on a GPU, a bounded region of RAM on a CPU.

Runs on: step thread, once; the thread ``device-kv`` takes the pages of a region that was asked for. A
region that was not is mapped only: its pages are taken as blocks are first written, in huge pages where
the kernel gives them, so a large default pool costs nothing until it is used.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Sequence

import torch

from tiering.memory.layout import KVLayout
from tiering.types import BlockCopy

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14: takes pages and leaves what is in them
_POPULATE_BYTES = (
    2 * 2**20
)  # at a time: the interpreter's lock is held meanwhile, a fraction of a millisecond


def allocate_device_pool(
    layout: KVLayout, num_blocks: int, dtype: torch.dtype, device: torch.device, *, take_pages: bool = False
) -> torch.Tensor:
    """The pool ``[num_blocks, num_layers, 2, kv_heads, block_size, head_dim]``; contents undefined.

    Takes ``num_blocks * layout.block_bytes`` bytes, rounded up to a page; on a CPU with ``take_pages`` soon,
    else as they are used.
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
    if take_pages:
        threading.Thread(target=_take_pages, args=(region,), name="device-kv", daemon=True).start()
    return torch.frombuffer(region, dtype=dtype).view(shape)


def copy_blocks(pool: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
    """Copy whole blocks within a pool, all in one go. No target may be a source."""
    sources = torch.tensor([copy.source for copy in copies], device=pool.device)
    targets = torch.tensor([copy.target for copy in copies], device=pool.device)
    pool.index_copy_(0, targets, pool.index_select(0, sources))


def _take_pages(region: mmap.mmap) -> None:
    with contextlib.suppress(OSError, ValueError):  # an older kernel takes them as they are used
        for start in range(0, len(region), _POPULATE_BYTES):
            region.madvise(_POPULATE_WRITE, start, min(_POPULATE_BYTES, len(region) - start))
