"""The pool is exactly as large as asked, block-major, and costs nothing before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tiering.memory.device_pool import allocate_device_pool, copy_blocks
from tiering.memory.layout import KVLayout
from tiering.types import BlockCopy, BlockId

CPU = torch.device("cpu")


def layout(dtype_bytes: int = 2) -> KVLayout:
    return KVLayout(num_layers=4, num_kv_heads=2, block_size=16, head_dim=64, dtype_bytes=dtype_bytes)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_blocks", [1, 3, 1000])
def test_it_is_exactly_what_was_asked_for(dtype: torch.dtype, num_blocks: int) -> None:
    shape = layout(dtype.itemsize)
    pool = allocate_device_pool(shape, num_blocks, dtype, CPU)
    assert pool.shape == (num_blocks, 4, 2, 2, 16, 64)
    assert pool.dtype is dtype
    assert pool.nbytes == num_blocks * shape.block_bytes


def test_one_block_is_contiguous_over_all_layers() -> None:
    shape = layout()
    pool = allocate_device_pool(shape, 5, torch.bfloat16, CPU)
    assert pool.is_contiguous()
    assert pool[1].data_ptr() - pool[0].data_ptr() == shape.block_bytes
    pool.zero_()
    pool[2] = 1.0
    assert pool.view(5, -1).sum(dim=1).tolist() == [0, 0, shape.block_bytes // 2, 0, 0]


def test_pages_are_taken_as_blocks_are_written() -> None:
    shape = layout()
    before = resident_bytes()
    pool = allocate_device_pool(shape, 2**30 // shape.block_bytes, torch.bfloat16, CPU)
    assert pool.nbytes == 2**30
    assert resident_bytes() - before < 2**26
    count = 2**27 // shape.block_bytes
    pool[:count] = 1.0
    assert 2**27 - 2**24 < resident_bytes() - before < 2**28


def test_it_gets_huge_pages_where_the_kernel_gives_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this kernel gives no transparent huge pages")
    before = huge_bytes()
    pool = allocate_device_pool(layout(), 2**26 // layout().block_bytes, torch.bfloat16, CPU)
    pool.fill_(1.0)
    assert huge_bytes() - before >= 2**25


def huge_bytes() -> int:
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages:"))


def test_the_memory_lives_as_long_as_the_tensor() -> None:
    view = allocate_device_pool(layout(), 4, torch.bfloat16, CPU)[2]
    view.fill_(3.0)
    allocate_device_pool(layout(), 4, torch.bfloat16, CPU).fill_(1.0)
    assert (view == 3.0).all()


def test_a_dtype_that_the_layout_is_not_for_is_a_bug_of_ours() -> None:
    with pytest.raises(AssertionError):
        allocate_device_pool(layout(dtype_bytes=4), 1, torch.bfloat16, CPU)


def test_blocks_are_copied_whole_and_all_at_once() -> None:
    pool = torch.arange(6 * 4, dtype=torch.float32).view(6, 1, 2, 1, 2, 1).clone()
    before = pool.clone()
    copy_blocks(
        pool,
        [
            BlockCopy(BlockId(1), BlockId(4)),
            BlockCopy(BlockId(1), BlockId(0)),
            BlockCopy(BlockId(5), BlockId(2)),
        ],
    )
    assert torch.equal(pool, before[[1, 1, 5, 3, 1, 5]])
