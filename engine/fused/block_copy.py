"""Copy-on-write: whole KV blocks copied within the pool, all pairs of a step in one launch.

The pool is words of eight bytes to the kernel, of which a thread moves neighbours in accesses of sixteen
bytes, or words of four where blocks are no multiples of eight; where in a block which layer or head is does
not matter. Pairs are in device memory, so a launch may
be part of a graph: a pair whose target is negative copies nothing. Runs on: step thread; launches only.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.fused.configs import block_copy_launch, block_copy_programs
from engine.kernels.jit import jit

_WORDS = (torch.int64, torch.int32)


@jit(varying=["sources", "targets"])
def copy_blocks_kernel(
    pool: tl.tensor, sources: tl.tensor, targets: tl.tensor, BLOCK_WORDS: tl.constexpr, TILE: tl.constexpr
) -> None:
    """A piece of one pair's block: the grid is (pairs, pieces)."""
    pair = tl.program_id(0)
    source = tl.load(sources + pair).to(tl.int64)  # a pool has more than 2^31 words
    target = tl.load(targets + pair).to(tl.int64)
    words = tl.program_id(1) * TILE + tl.arange(0, TILE)
    if target >= 0:
        inside = words < BLOCK_WORDS
        piece = tl.load(pool + source * BLOCK_WORDS + words, mask=inside)
        tl.store(pool + target * BLOCK_WORDS + words, piece, mask=inside)


def copy_blocks(pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy block ``sources[i]`` of ``pool`` to ``targets[i]`` for all i, in any order; integers ``[P]`` each.

    No target may be a source or come twice. ``pool`` is contiguous; its blocks are multiples of 4 bytes, as
    all are that have a key and a value of 16 bits.
    """
    num_pairs, block_bytes = len(sources), pool[0].nbytes
    assert pool.is_contiguous() and len(targets) == num_pairs
    if num_pairs:
        word = next(word for word in _WORDS if block_bytes % word.itemsize == 0)
        block_words = block_bytes // word.itemsize
        copy_blocks_kernel[(num_pairs, block_copy_programs(block_words))](
            pool.view(len(pool), -1).view(word),
            sources,
            targets,
            **block_copy_launch(block_words).keywords(),
        )
