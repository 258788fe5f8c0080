"""Recounts everything a block manager believes, from scratch.

Run on request, and after every step of every scheduler test. O(blocks + table entries).
"""

from __future__ import annotations

from collections import Counter

from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.types import BlockId, BlockState


def check(manager: BlockManager) -> list[str]:
    """Sentences about what does not add up; empty if all is well."""
    references = Counter(block for table in manager.tables().values() for block in table.blocks)
    return [
        *_check_references(manager.pool, references),
        *_check_partition(manager.pool, references),
        *_check_names(manager.pool),
        *_check_tables(manager),
    ]


def _check_references(pool: BlockPool, references: Counter[BlockId]) -> list[str]:
    return [
        f"block {block}: ref_count {pool.ref_count(block)}, but {references[block]} table entries"
        for block in map(BlockId, range(pool.num_blocks))
        if pool.ref_count(block) != references[block]
    ]


def _check_partition(pool: BlockPool, references: Counter[BlockId]) -> list[str]:
    problems = []
    free, evictable = Counter(pool.free_blocks()), Counter(pool.evictable_blocks())
    for block in map(BlockId, range(pool.num_blocks)):
        places = free[block] + evictable[block] + (references[block] > 0)
        if places != 1:
            problems.append(f"block {block} is in {places} of free list, eviction order and use")
        if (free[block] > 0) != (pool.state(block) is BlockState.FREE):
            problems.append(f"block {block} is {pool.state(block).value}, against the free list")
    return problems


def _check_names(pool: BlockPool) -> list[str]:
    problems = []
    named = dict(pool.named_blocks())
    for name, block in named.items():
        if pool.name_of(block) != name:
            problems.append(f"block {block} is in the index under a name it does not have")
    num_ready = 0
    for block in map(BlockId, range(pool.num_blocks)):
        ready = pool.state(block) is BlockState.READY
        num_ready += ready
        if ready != (pool.name_of(block) is not None):
            problems.append(f"block {block} is {pool.state(block).value}, against its name")
    if num_ready != len(named):
        problems.append(f"{num_ready} READY blocks, but {len(named)} names in the index")
    return problems


def _check_tables(manager: BlockManager) -> list[str]:
    problems = []
    for sequence_id, table in manager.tables().items():
        if len(set(table.blocks)) != len(table.blocks):
            problems.append(f"sequence {sequence_id} has a block twice in its table")
        if table.num_published > len(table.blocks):
            problems.append(f"sequence {sequence_id} published more blocks than it has")
        for index, block in enumerate(table.blocks):
            if manager.pool.ref_count(block) > 1 and index >= table.num_published:
                problems.append(f"sequence {sequence_id} shares block {block}, which it still writes")
    return problems
