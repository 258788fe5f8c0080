"""Checksums of blocks: XXH3, 128 bits. They find accidents, not attackers.

``HostChecksums`` is shared by the movers on both sides of the host tier. A slot's entry is written by the
move that fills the slot and read by later ones, never at the same time, as moves pin their ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash


def checksum(block: npt.NDArray[np.uint8]) -> bytes:
    """16 bytes. The interpreter's lock is released meanwhile."""
    return xxhash.xxh3_128_digest(block.data)


class HostChecksums:
    """What each host slot should hold."""

    def __init__(self, num_slots: int) -> None:
        self._digests: list[bytes | None] = [None] * num_slots

    def note(self, slot: int, digest: bytes) -> None:
        self._digests[slot] = digest

    def agrees(self, slot: int, block: npt.NDArray[np.uint8]) -> bool:
        """Whether ``block`` is what was put into the slot."""
        return self._digests[slot] == checksum(block)
