"""The ring of pinned buffers, over a device that copies as late as it may."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.execution.staging import StagingRing

CPU = torch.device("cpu")


class LateDevice:
    """Does what was enqueued only when somebody waits for it."""

    def __init__(self) -> None:
        self._queue: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.num_done = 0
        self.num_waits = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._queue.append((target, source))

    def fence(self, device: torch.device) -> LateFence:
        return LateFence(self)

    @property
    def num_enqueued(self) -> int:
        return self.num_done + len(self._queue)

    def run(self, until: int) -> None:
        while self.num_done < until:
            target, source = self._queue.pop(0)
            target.copy_(source)
            self.num_done += 1


class LateFence:
    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._until = 0

    def record(self) -> None:
        self._until = self._device.num_enqueued

    def synchronize(self) -> None:
        self._device.num_waits += self._until > self._device.num_done
        self._device.run(self._until)


def test_no_step_is_overwritten_before_it_is_on_the_device() -> None:
    device = LateDevice()
    ring = StagingRing(8, CPU, device.fence, device.copy)
    targets = torch.zeros((20, 8), dtype=torch.int32)
    for step, target in enumerate(targets):
        ring.words()[:5] = step + 1
        ring.send(target, 5)
    device.run(len(targets))
    assert targets[:, :5].tolist() == [[step + 1] * 5 for step in range(20)]
    assert not targets[:, 5:].any()


def test_a_device_that_is_not_far_behind_is_not_waited_for() -> None:
    device = LateDevice()
    ring = StagingRing(4, CPU, device.fence, device.copy)
    target = torch.zeros(4, dtype=torch.int32)
    for step in range(12):
        ring.words()[:] = step
        ring.send(target, 4)
        device.run(max(0, step - 1))  # two steps behind
    assert device.num_waits == 0


@pytest.mark.parametrize("num_words", [0, 3])
def test_on_a_cpu_a_copy_is_done_at_once(num_words: int) -> None:
    ring = StagingRing(4, CPU)
    target = torch.full((4,), 9, dtype=torch.int32)
    ring.words()[:] = np.arange(4)
    ring.send(target, num_words)
    assert target.tolist() == [*range(num_words), *[9] * (4 - num_words)]
