"""Whether a sequence whose KV is on a lower tier gets it back by copying, by computing, or by both.

A policy sees a frozen snapshot and chooses; it is asked when a sequence is preempted (is it worth
copying out?) and when one is admitted with hits below the device.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class RestoreMode(enum.Enum):
    """``BOTH``: compute the front while the tail is loaded, until they meet."""

    LOAD = "load"
    COMPUTE = "compute"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class RestoreSituation:
    """What restoring would take. Seconds; None where nothing has been measured yet.

    ``load_s`` includes the copies already queued ahead, and the step that takes the last token; so does
    ``compute_s``. ``step_s`` is what a step costs however little it computes. ``store_s`` is 0 if nothing is
    to be copied out.
    """

    num_blocks: int
    load_s: float | None
    compute_s: float | None
    store_s: float | None = 0.0
    step_s: float = 0.0


class RestorePolicy(Protocol):
    """Made without arguments."""

    @property
    def name(self) -> str:
        """Label for settings."""
        ...

    def restore(self, situation: RestoreSituation) -> RestoreMode:
        """How to bring back blocks that are on host or disk."""
        ...

    def keeps(self, situation: RestoreSituation) -> bool:
        """Whether to copy a preempted sequence out (else it computes again what leaves the cache)."""
        ...


class Recompute:
    """Never copies on behalf of a sequence. What a tier holds is of no use to it."""

    name = "recompute"

    def restore(self, situation: RestoreSituation) -> RestoreMode:
        return RestoreMode.COMPUTE

    def keeps(self, situation: RestoreSituation) -> bool:
        return False


class Swap:
    """Always copies."""

    name = "swap"

    def restore(self, situation: RestoreSituation) -> RestoreMode:
        return RestoreMode.LOAD

    def keeps(self, situation: RestoreSituation) -> bool:
        return True


class Adaptive:
    """Whichever of the two is predicted to be faster; copies until both have been measured."""

    name = "adaptive"

    def restore(self, situation: RestoreSituation) -> RestoreMode:
        return RestoreMode.LOAD if self._loads(situation, 0.0) else RestoreMode.COMPUTE

    def keeps(self, situation: RestoreSituation) -> bool:
        return self._loads(situation, situation.store_s or 0.0)

    def _loads(self, situation: RestoreSituation, more_s: float) -> bool:
        if situation.load_s is None or situation.compute_s is None:
            return True
        return situation.load_s + more_s <= situation.compute_s


class Overlap:
    """Computes the front while the tail is loaded (Cake, arXiv 2410.03065), where that is predicted to pay.

    It costs a step more than computing alone, and may have to wait for the one block that is under way when
    front and tail meet; where these outweigh the gain it only loads, or only computes.
    """

    name = "overlap"

    def restore(self, situation: RestoreSituation) -> RestoreMode:
        if situation.load_s is None or situation.compute_s is None:
            return RestoreMode.BOTH
        seconds = {
            RestoreMode.BOTH: _both_s(situation, situation.load_s, situation.compute_s),
            RestoreMode.LOAD: situation.load_s,
            RestoreMode.COMPUTE: situation.compute_s,
        }
        return min(seconds, key=lambda mode: seconds[mode])

    def keeps(self, situation: RestoreSituation) -> bool:
        return self.restore(situation) is not RestoreMode.COMPUTE


def _both_s(situation: RestoreSituation, load_s: float, compute_s: float) -> float:
    """Seconds until front and tail have met and the last token is computed."""
    count, step_s = situation.num_blocks, situation.step_s
    load_block_s, compute_block_s = (max(0.0, seconds - step_s) / count for seconds in (load_s, compute_s))
    num_computed = blocks_to_compute(count, step_s, compute_block_s, load_block_s)
    computing_s = max(step_s + num_computed * compute_block_s, num_computed * compute_s / count)
    loading_s = (count - num_computed) * load_block_s
    return max(computing_s, loading_s) + load_block_s + step_s


def blocks_to_compute(num_blocks: int, step_s: float, compute_s: float, load_s: float) -> int:
    """Of ``num_blocks`` missing ones, how many to compute so that computing and loading end together.

    ``compute_s`` and ``load_s`` are per block, ``step_s`` what a step costs beside: solves
    ``step_s + n * compute_s = (num_blocks - n) * load_s`` for n.
    """
    if load_s <= 0:
        return 0
    share = (num_blocks * load_s - step_s) / (load_s + compute_s)
    return min(num_blocks, max(0, int(share)))
