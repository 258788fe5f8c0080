"""Which copies a batch of moves is made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.movers.copy_runs import Ends, Runs, plan_runs
from tiering.types import BlockId, TransferId, TransferJob, TransferKind

OUT, IN = TransferKind.SWAP_OUT, TransferKind.SWAP_IN


def jobs(kind: TransferKind, *pairs: tuple[int, int]) -> list[TransferJob]:
    """Moves between (device block, host slot)."""
    return [
        TransferJob(TransferId(i), kind, *map(BlockId, pair if kind is OUT else pair[::-1]), None)
        for i, pair in enumerate(pairs)
    ]


def shapes(runs: Runs) -> list[tuple[int, int, int]]:
    """Of each run the device block, the host slot, and how many blocks."""
    return list(zip(runs.device.tolist(), runs.host.tolist(), runs.counts.tolist(), strict=True))


@pytest.mark.parametrize("kind", [OUT, IN])
@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], []),
        ([(5, 9)], [(5, 9, 1)]),
        ([(5, 9), (6, 10), (7, 11)], [(5, 9, 3)]),
        ([(7, 11), (6, 10), (5, 9)], [(5, 9, 3)]),  # as loads of a tail come
        ([(5, 9), (6, 11)], [(5, 9, 1), (6, 11, 1)]),
        ([(5, 9), (7, 10)], [(5, 9, 1), (7, 10, 1)]),
        ([(6, 9), (5, 10)], [(6, 9, 1), (5, 10, 1)]),
        ([(i, i + 3) for i in range(20)], [(0, 3, 5), (5, 8, 8), (13, 16, 7)]),  # chunks of 8 slots
        ([(i, i + 8) for i in range(8)], [(0, 8, 8)]),
    ],
)
def test_neighbours_go_together_up_to_the_end_of_a_chunk(
    kind: TransferKind, pairs: list[tuple[int, int]], expected: list[tuple[int, int, int]]
) -> None:
    assert shapes(plan_runs(jobs(kind, *pairs), blocks_per_chunk=8)) == expected


@given(
    kind=st.sampled_from([OUT, IN]),
    devices=st.lists(st.integers(0, 40), unique=True, max_size=30),
    hosts=st.permutations(range(31)),
    blocks_per_chunk=st.integers(1, 12),
)
def test_runs_are_the_moves_and_no_more_copies_than_needed(
    kind: TransferKind, devices: list[int], hosts: list[int], blocks_per_chunk: int
) -> None:
    moves = jobs(kind, *zip(devices, hosts, strict=False))
    planned = plan_runs(moves, blocks_per_chunk)
    runs = shapes(planned)
    told = [
        (device + i, host + i, job)
        for index, (device, host, count) in enumerate(runs)
        for i, job in zip(range(count), planned.jobs_of(index), strict=True)
    ]
    ends = {job.transfer_id: (job.source, job.target) for job in moves}
    assert sorted(job.transfer_id for *_, job in told) == sorted(ends)
    for device, host, job in told:
        assert ends[job.transfer_id] == ((device, host) if kind is OUT else (host, device))
    for _, host, count in runs:
        assert host // blocks_per_chunk == (host + count - 1) // blocks_per_chunk
    stretches = {(device + count, host + count) for device, host, count in runs}
    for device, host, _ in runs:
        assert (device, host) not in stretches or host % blocks_per_chunk == 0


@given(hosts=st.permutations(range(12)), cut=st.integers(0, 12))
def test_a_part_of_the_runs_keeps_their_jobs(hosts: list[int], cut: int) -> None:
    planned = plan_runs(jobs(OUT, *enumerate(hosts)), blocks_per_chunk=4)
    parts = planned.part(slice(cut)), planned.part(slice(cut, None))
    assert shapes(parts[0]) + shapes(parts[1]) == shapes(planned)
    kept = [part.jobs_of(i) for part in parts for i in range(len(part))]
    assert kept == [planned.jobs_of(i) for i in range(len(planned))]


def test_addresses_are_those_of_large_pools() -> None:
    ends = Ends(device=2**47, host=0x7F00_0000_0000, block_bytes=13_107_200)
    runs = plan_runs(jobs(OUT, (70_000, 90_000), (70_001, 90_001), (3, 7)), blocks_per_chunk=50)
    copies = ends.copy_list(runs)
    assert copies.device.tolist() == [2**47 + 3 * 13_107_200, 2**47 + 70_000 * 13_107_200]
    assert copies.host.tolist() == [0x7F00_0000_0000 + 7 * 13_107_200, 0x7F00_0000_0000 + 90_000 * 13_107_200]
    assert copies.sizes.tolist() == [13_107_200, 2 * 13_107_200]
    assert all(column.dtype == np.uint64 for column in (copies.device, copies.host, copies.sizes))
