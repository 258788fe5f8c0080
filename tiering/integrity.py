"""Recounts everything a block manager believes, from scratch, over all tiers.

Run on request, and after every step of every scheduler test. O(blocks + table entries + moves).
"""

from __future__ import annotations

from collections import Counter

from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.outlook import Keep
from tiering.types import BlockId, BlockState, Tier, TransferJob

_NAMED_STATES = (BlockState.READY, BlockState.COPYING_OUT, BlockState.COPYING_IN)


def check(manager: BlockManager) -> list[str]:
    """Sentences about what does not add up; empty if all is well."""
    problems = []
    jobs = list(manager.tiers.jobs())
    for tier, pool in manager.tiers.pools():
        references = _references(manager, tier, jobs)
        found = [
            *_check_references(pool, references),
            *_check_partition(pool, references),
            *_check_names(pool),
            *_check_copies(pool, tier, jobs),
            *_check_ranking(pool),
        ]
        problems += [f"{tier}: {problem}" for problem in found]
    return problems + _check_tables(manager)


def _references(manager: BlockManager, tier: Tier, jobs: list[TransferJob]) -> Counter[BlockId]:
    """Who refers to the blocks of a tier: tables, swapped sequences, and moves to their targets."""
    references: Counter[BlockId] = Counter()
    if tier is Tier.DEVICE:
        references.update(block for table in manager.tables().values() for block in table.blocks)
        references.update(block for branch in manager.branches().values() for block in branch.blocks)
    elif tier is Tier.HOST:
        references.update(slot for parked in manager.parked_tables().values() for slot in parked.slots)
    references.update(job.target for job in jobs if job.kind.target is tier)
    return references


def _check_references(pool: BlockPool, references: Counter[BlockId]) -> list[str]:
    return [
        f"block {block}: ref_count {pool.ref_count(block)}, but {references[block]} references"
        for block in map(BlockId, range(pool.num_blocks))
        if pool.ref_count(block) != references[block]
    ]


def _check_partition(pool: BlockPool, references: Counter[BlockId]) -> list[str]:
    problems = []
    free, evictable = Counter(pool.free_blocks()), Counter(pool.evictable_blocks())
    for block in map(BlockId, range(pool.num_blocks)):
        is_nameless_source = pool.copies_out(block) > 0 and pool.label_of(block) is None
        places = free[block] + evictable[block] + (references[block] > 0 or is_nameless_source)
        if places != 1:
            problems.append(f"block {block} is in {places} of free list, eviction order and use")
        if (free[block] > 0) != (pool.state(block) is BlockState.FREE):
            problems.append(f"block {block} is {pool.state(block).value}, against the free list")
        if evictable[block] and pool.state(block) not in (BlockState.READY, BlockState.COPYING_OUT):
            problems.append(f"block {block} is {pool.state(block).value}, yet evictable")
    held = sum(pool.copies_out(block) > 0 for block in evictable)
    if pool.num_available() != len(free) + len(evictable) - held:
        problems.append(f"{pool.num_available()} blocks are said to be available")
    usage = pool.usage()
    if usage.free + usage.cached + usage.in_use + usage.copying != pool.num_blocks or usage.in_use < 0:
        problems.append(f"the usage {usage} does not add up to {pool.num_blocks} blocks")
    return problems


def _check_names(pool: BlockPool) -> list[str]:
    problems = []
    named, arriving = dict(pool.named_blocks()), dict(pool.arriving_blocks())
    for name, block in (*named.items(), *arriving.items()):
        label = pool.label_of(block)
        if label is None or label.name != name:
            problems.append(f"block {block} is in an index under a name it does not have")
    for name, block in arriving.items():
        if pool.state(block) is not BlockState.COPYING_IN:
            state = pool.state(block).value
            problems.append(f"block {block} is {state}, against its arriving name {name.hex()}")
    num_labels = 0
    for block in map(BlockId, range(pool.num_blocks)):
        has_label = pool.label_of(block) is not None
        num_labels += has_label
        if has_label and pool.state(block) not in _NAMED_STATES:
            problems.append(f"block {block} is {pool.state(block).value}, and yet has a name")
        if pool.state(block) is BlockState.READY and not has_label:
            problems.append(f"block {block} is ready without a name")
    if num_labels != len(named) + len(arriving):
        problems.append(f"{num_labels} labels, but {len(named)} names and {len(arriving)} arriving ones")
    return problems


def _check_copies(pool: BlockPool, tier: Tier, jobs: list[TransferJob]) -> list[str]:
    problems = []
    sources = Counter(job.source for job in jobs if job.kind.source is tier)
    targets = Counter(job.target for job in jobs if job.kind.target is tier)
    for block in map(BlockId, range(pool.num_blocks)):
        state = pool.state(block)
        if targets[block] != (state is BlockState.COPYING_IN):
            problems.append(f"block {block} is {state.value}, the target of {targets[block]} moves")
        if sources[block] != pool.copies_out(block) or (sources[block] > 0) != (
            state is BlockState.COPYING_OUT
        ):
            problems.append(f"block {block} is {state.value}, the source of {sources[block]} moves")
    return problems


def _check_ranking(pool: BlockPool) -> list[str]:
    """What is kept and what is dirty, over again."""
    ranking, problems = pool.ranking, []
    if not ranking.adds_up():
        problems.append("what is kept or dirty is not in the queues where it belongs")
    if ranking.dirty() != {block for block in pool.evictable_blocks() if pool.is_dirty(block)}:
        problems.append("the dirty blocks are not those that are to be copied down")
    owners: dict[str, list[Keep]] = {}
    for kept in ranking.kept().values():
        owners.setdefault(kept.keep.owner, []).append(kept.keep)
    for owner, keeps in owners.items():
        if len(keeps) > max(int(keep.quota * pool.num_blocks) for keep in keeps):
            problems.append(f"owner {owner!r} keeps {len(keeps)} blocks, more than the quota")
    return problems


def _check_tables(manager: BlockManager) -> list[str]:
    problems = []
    positions: dict[BlockId, int] = {}
    for sequence_id, table in manager.tables().items():
        if len(set(table.blocks)) != len(table.blocks):
            problems.append(f"sequence {sequence_id} has a block twice in its table")
        if table.num_published > len(table.blocks):
            problems.append(f"sequence {sequence_id} published more blocks than it has")
        for index, block in enumerate(table.blocks):
            if positions.setdefault(block, index) != index:
                problems.append(f"sequence {sequence_id} has block {block} where another has it elsewhere")
            if manager.pool.is_being_filled(block) and not (table.restore and index in table.restore.moves):
                problems.append(f"sequence {sequence_id} holds block {block} while a copy writes it")
    return problems
