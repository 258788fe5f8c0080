"""Figures that an engine tells about itself: gauges, running totals, where blocks are, what it has learnt.

Part of the messages between the processes (``engine.messages``). Plain data.
"""

from __future__ import annotations

import msgspec

from tiering.transfers import SECONDS_BUCKETS

KV_TRANSFER_BUCKETS = SECONDS_BUCKETS
"""Upper bounds, in seconds, of the buckets in ``TransferStats``."""


class TierStats(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of one tier by use, its eviction policy, and running totals.

    ``blocks_kept`` of the cached ones are evicted only after all others.
    """

    blocks_free: int
    blocks_cached: int
    blocks_in_use: int
    blocks_copying: int
    eviction: str
    evictions_total: int
    hit_tokens_total: int
    blocks_kept: int = 0


class TransferStats(msgspec.Struct, frozen=True, array_like=True):
    """Running totals of one kind of move. ``buckets`` counts finished copies by their seconds.

    The bounds are ``KV_TRANSFER_BUCKETS``; the last entry is above them all. ``queue_s`` sums
    the seconds from a move's order to its start, ``cpu_s`` the processor time of copy threads.
    """

    num_done: int
    num_failed: int
    num_corrupt: int
    num_bytes: int
    copy_s: float
    queue_s: float
    cpu_s: float
    buckets: tuple[int, ...]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and running totals, as of the end of a step. Totals only grow within an epoch.

    ``tiers`` is keyed by tier, ``transfers`` by kind of move, ``preemptions`` by ``kind/cause`` (swap or
    recompute; pressure, share or slow_reader). ``blocks_in_use``: referenced blocks of all tiers, those under
    a copy included. ``block_copies_total``: blocks copied on the device before a write. ``stalls_total``:
    times that there was work, and all of it waited for copies. ``restore_*`` are of restores by loading
    alone: their time, and what was predicted.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    num_restoring: int = 0
    num_paused: int = 0
    blocks_in_use: int = 0
    stalls_total: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    recomputed_tokens_total: int = 0
    block_copies_total: int = 0
    restores_total: int = 0
    restore_s_total: float = 0.0
    restore_predicted_s_total: float = 0.0
    tiers: dict[str, TierStats] = {}
    transfers: dict[str, TransferStats] = {}
    preemptions: dict[str, int] = {}

    def of_the_dead(self) -> EngineStats:
        """What an engine leaves: nothing runs in it or waits, and all else is as it was."""
        return msgspec.structs.replace(
            self, num_running=0, num_waiting=0, num_swapped=0, num_restoring=0, num_paused=0
        )

    @property
    def preemptions_total(self) -> int:
        return sum(self.preemptions.values())


class SequenceKv(msgspec.Struct, frozen=True, kw_only=True):
    """Where one request's blocks are.

    ``blocks`` has a letter for each logical block: D device, H host slot; for a block that is coming back,
    h from host or d from disk; and ``.`` for one that is still to be computed. ``index`` is that of the
    sequence in its request; of a beam search, a number that no other beam has had.
    """

    request_id: str
    index: int
    status: str
    priority: int
    num_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    paused: bool
    blocks: str


class SessionKv(msgspec.Struct, frozen=True, array_like=True):
    """Where the blocks of one session are, those of all its branches; nothing of one that is not known.

    ``num_tokens``: of the turn that ended last, or runs. ``cells`` has a character for each full block: D on
    the device and in use, d there and cached, h on host, k on disk, > moving down, < moving up, - gone.
    """

    session: str
    num_tokens: int
    cells: str


class KvCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine has learnt about its own speed, in seconds; 0 where nothing was seen yet.

    A step takes ``step_s`` + ``token_s`` a token + ``pair_s`` a query-key pair: a fit, in which one term may
    be below zero where the steps seen so far were much alike. By kind of move, ``block_s``
    is the time of one block's copy, and ``bytes_per_s`` the bandwidth that this is.
    """

    step_s: float
    token_s: float
    pair_s: float
    block_s: dict[str, float]
    bytes_per_s: dict[str, float]
