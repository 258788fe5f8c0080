"""When a block is copied down a tier, so that evicting it loses nothing.

A policy only answers; the copies are begun by ``tiering.tiers``, for device to host and for host
to disk alike. Whatever it says, a preempted sequence that is to be swapped is copied to host.
"""

from __future__ import annotations

from typing import Protocol


class WritePolicy(Protocol):
    """Made without arguments, one instance per tier."""

    @property
    def name(self) -> str:
        """Label for settings."""
        ...

    @property
    def cleans_ahead(self) -> bool:
        """Copy the next eviction victims down while free blocks run low, before they have to go."""
        ...

    def stores_ready(self) -> bool:
        """Whether to copy a block down as soon as it is full, or has arrived from above."""
        ...

    def stores_hit(self, num_hits: int) -> bool:
        """Whether to copy a block down on its ``num_hits``-th hit (from 1)."""
        ...


class WriteBack:
    """Copy late: only what is about to be evicted. The default; keeps all there is room for."""

    name = "back"
    cleans_ahead = True

    def stores_ready(self) -> bool:
        return False

    def stores_hit(self, num_hits: int) -> bool:
        return False


class WriteThrough:
    """Copy at once: eviction is always free, and a crash loses little, for the most copying."""

    name = "through"
    cleans_ahead = True

    def stores_ready(self) -> bool:
        return True

    def stores_hit(self, num_hits: int) -> bool:
        return False


class WriteSelective:
    """Copy on a block's first hit: what nobody ever asks for again is never copied."""

    name = "selective"
    cleans_ahead = False
    threshold = 1

    def stores_ready(self) -> bool:
        return False

    def stores_hit(self, num_hits: int) -> bool:
        return num_hits == self.threshold
