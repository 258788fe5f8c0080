"""Where named blocks are over all tiers, a character for each. Pure queries; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tiering.block_pool import BlockPool
from tiering.tiers import Tiers
from tiering.types import BlockHash

IN_USE, CACHED, ON_HOST, ON_DISK, DOWN, UP, GONE = "Ddhk><-"


def cells(tiers: Tiers, names: Iterable[BlockHash]) -> str:
    """D device and in use, d device and cached, h host, k disk, > moving down, < moving up, - gone."""
    return "".join(_cell(tiers, name) for name in names)


def _cell(tiers: Tiers, name: BlockHash) -> str:
    device, host, disk = tiers.device, tiers.host, tiers.disk
    block = device.lookup(name)
    if block is not None:
        if device.ref_count(block):
            return IN_USE
        return DOWN if device.copies_out(block) else CACHED
    if host is None:
        return GONE
    if device.is_arriving(name):
        return UP
    return _below_device(host, disk, name)


def _below_device(host: BlockPool, disk: BlockPool | None, name: BlockHash) -> str:
    is_on_host = host.lookup(name) is not None
    if disk is None:
        return ON_HOST if is_on_host else DOWN if host.is_arriving(name) else GONE
    if disk.is_arriving(name):
        return DOWN
    if is_on_host:
        return ON_HOST
    is_on_disk = disk.lookup(name) is not None
    if host.is_arriving(name):
        return UP if is_on_disk else DOWN
    return ON_DISK if is_on_disk else GONE
