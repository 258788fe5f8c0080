"""How a step's words get to the device: through a ring of pinned buffers, in one copy that nobody waits for.

Runs on: step thread. Blocks: only if the device is as many steps behind as there are buffers. Invariant: a
buffer is not written before the copy that last read it has ended, for the host is done with a step's words
long before the device has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

_NUM_BUFFERS = 3


class Fence(Protocol):
    """A place in the order of what the device does; an event, where there is a device."""

    def record(self) -> None:
        """Put it behind all that was enqueued so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has come there. Returns at once if it was never recorded."""
        ...


class _NoFence:
    """What is done on a CPU is done when the call returns."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def make_fence(device: torch.device) -> Fence:
    """A fence in the order of the device's current stream."""
    return torch.cuda.Event() if device.type == "cuda" else _NoFence()


Copy = Callable[[torch.Tensor, torch.Tensor], None]


def enqueue_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between pinned memory and the device, in the order of the current stream, and return at once."""
    target.copy_(source, non_blocking=True)


class StagingRing:
    """Pinned buffers of ``num_words`` words each, taken in turn."""

    def __init__(
        self,
        num_words: int,
        device: torch.device,
        fence: Callable[[torch.device], Fence] = make_fence,
        copy: Copy = enqueue_copy,
    ) -> None:
        is_pinned = device.type == "cuda"
        self._buffers = [
            torch.zeros(num_words, dtype=torch.int32, pin_memory=is_pinned) for _ in range(_NUM_BUFFERS)
        ]
        self._fences = [fence(device) for _ in range(_NUM_BUFFERS)]
        self._copy = copy
        self._next = 0

    def words(self) -> npt.NDArray[np.int32]:
        """The buffer to write next, once nothing reads it any more."""
        self._fences[self._next].synchronize()
        return self._buffers[self._next].numpy()

    def send(self, target: torch.Tensor, num_words: int) -> None:
        """Copy the first ``num_words`` of what was written to the beginning of ``target``."""
        self._copy(target[:num_words], self._buffers[self._next][:num_words])
        self._fences[self._next].record()
        self._next = (self._next + 1) % _NUM_BUFFERS
