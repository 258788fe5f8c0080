"""Memory that parallel samples and beams save by sharing blocks, beside the figures of the paper.

Figure 15 of "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et al.,
SOSP'23, arXiv 2309.06180): blocks of 16 tokens, forced lengths, saving = 1 - physical / logical blocks,
averaged over time. Waste is the share of allocated slots that hold no token.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.lengths import Lengths
from loadtest.simulate import SharingSimulation

WIDTHS = (2, 4, 6)
PAPER: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("alpaca", "parallel"): (0.0609, 0.0853, 0.0979),
    ("alpaca", "beam"): (0.3756, 0.5313, 0.5516),
    ("sharegpt", "parallel"): (0.162, None, 0.305),
    ("sharegpt", "beam"): (0.443, None, 0.663),
}
"""By lengths and kind, for each of ``WIDTHS``; of ShareGPT the text gives the ends of the range only."""


@dataclass(frozen=True, slots=True)
class Saving:
    """One cell of the figure. ``saving`` and ``waste`` are shares; ``paper`` is None if it has no figure."""

    lengths: str
    kind: str
    width: int
    saving: float
    waste: float
    paper: float | None
    num_requests: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    name: str,
    lengths: Sequence[Lengths],
    kind: str,
    width: int,
    *,
    in_flight: int,
    block_size: int,
    seed: int = 0,
) -> Saving:
    """Replay ``lengths`` with ``width`` sequences a request; ``kind`` is parallel, beam, or single."""
    simulation = SharingSimulation(
        lengths,
        width=width,
        use_beams=kind == "beam",
        in_flight=in_flight,
        block_size=block_size,
        seed=seed,
    )
    uses = [use for use in simulation.run() if use.physical_blocks]
    saving = statistics.fmean(use.saving for use in uses)
    waste = statistics.fmean(1 - use.tokens / (use.physical_blocks * block_size) for use in uses)
    figures = PAPER.get((name, kind))
    paper = figures[WIDTHS.index(width)] if figures is not None and width in WIDTHS else None
    return Saving(name, kind, width, saving, waste, paper, len(lengths))
