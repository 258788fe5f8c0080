"""Which way of copying between a GPU and host memory is chosen: one that lies or fails is passed over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.mover_bench import (
    IN,
    OUT,
    Bench,
    bench,
)
from tiering.movers.copy_path import choose_path
from tiering.movers.copy_runs import CopyList
from tiering.movers.copy_stream import CopyError, DeviceLostError
from tiering.types import TransferKind


def rotated(copies: CopyList) -> CopyList:
    return CopyList(np.roll(copies.device, 1), copies.host, copies.sizes)


def short(copies: CopyList) -> CopyList:
    return CopyList(copies.device, copies.host, copies.sizes - np.uint64(1))


def without_last(copies: CopyList) -> CopyList:
    return CopyList(copies.device[:-1], copies.host[:-1], copies.sizes[:-1])


def all_to_one(copies: CopyList) -> CopyList:
    return CopyList(copies.device, np.full_like(copies.host, copies.host[0]), copies.sizes)


def nothing(copies: CopyList) -> CopyList:
    return CopyList(copies.device[:0], copies.host[:0], copies.sizes[:0])


LIES = [rotated, short, without_last, all_to_one, nothing]


def choose(b: Bench, num_slots: int | None = None) -> tuple[str, str]:
    paths = [
        b.device.path(b.host, is_batched=True, name="batches"),
        b.device.path(b.host, is_batched=False, name="singly"),
    ]
    with b.device.running():
        chosen = choose_path(paths, b.device.ends(b.host), len(b.blocks), b.host[:num_slots])
    return chosen.path.name, chosen.description


@pytest.mark.parametrize(("num_blocks", "num_slots"), [(32, 32), (1, 1), (3, 32), (32, 1), (500, 40)])
def test_batches_that_copy_truly_are_taken_and_the_link_is_measured(num_blocks: int, num_slots: int) -> None:
    with bench(num_blocks=num_blocks, num_slots=num_slots) as b:
        name, description = choose(b)
        assert name == "batches"
        assert description.startswith("batches, ") and description.count("GB/s") == 2


@pytest.mark.parametrize("kind", [OUT, IN])
@pytest.mark.parametrize("lie", LIES)
def test_batches_that_lie_either_way_are_not_taken(
    kind: TransferKind, lie: Callable[[CopyList], CopyList], caplog: pytest.LogCaptureFixture
) -> None:
    with bench() as b:
        b.device.lies = {(kind, True): lie}
        assert choose(b)[0] == "singly"
    assert "not moved by batches: blocks came back changed" in caplog.text


@pytest.mark.parametrize("lie", [rotated, without_last])
def test_lies_that_undo_each_other_are_found_too(lie: Callable[[CopyList], CopyList]) -> None:
    with bench() as b:
        b.device.lies = {(IN, True): lie, (OUT, True): lie}
        assert choose(b)[0] == "singly"


def test_batches_that_are_refused_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    with bench() as b:
        b.device.refuses_batches = True
        assert choose(b)[0] == "singly"
    assert "CUDA_ERROR_NOT_SUPPORTED" in caplog.text


def test_a_link_that_does_nothing_right_is_an_error() -> None:
    with bench() as b:
        b.device.lies = {(kind, batch): nothing for kind in (OUT, IN) for batch in (False, True)}
        with pytest.raises(CopyError, match=r"no way to copy blocks .* singly: blocks came back changed"):
            choose(b)


def test_a_device_that_is_lost_meanwhile_is_told_as_such() -> None:
    with bench() as b:
        b.device.lose()
        with pytest.raises(DeviceLostError):
            choose(b)
