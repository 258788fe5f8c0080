"""Names of KV blocks: a keyed hash chained over salt, parent name and token ids.

Two blocks with one name hold the same KV bytes, so the salt must cover whatever the bytes depend on
beside the tokens. A pool that lives and dies with one loaded model needs only the tenant, under a
secret of the server; one that outlives it needs weights, configuration, dtype and layout too. 128-bit
keyed BLAKE2b (RFC 7693): without the key nobody can construct two histories with one name.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from tiering.types import BlockHash

HASH_BYTES = 16
SALT_BYTES = 32
ROOT = BlockHash(bytes(HASH_BYTES))
"""Parent of a first block."""


def derive_salt(secret: bytes, *parts: bytes) -> bytes:
    """Salt (32 bytes) for everything that must not be shared beyond ``parts``.

    Parts are length-prefixed, so ("ab", "c") and ("a", "bc") differ.
    """
    digest = hashlib.blake2b(key=secret[:64], digest_size=SALT_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


class BlockNamer:
    """Names the full blocks of token histories that share one salt."""

    def __init__(self, salt: bytes, block_size: int) -> None:
        assert len(salt) == SALT_BYTES
        assert block_size > 0
        self._salt = salt
        self.block_size = block_size

    def names(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """Names of all full blocks of a history."""
        found: list[BlockHash] = []
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            parent = found[-1] if found else ROOT
            found.append(self.name(parent, token_ids[start : start + self.block_size]))
        return found

    def name(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        """Name of the block that holds ``token_ids`` (exactly one block) after block ``parent``."""
        assert len(token_ids) == self.block_size
        payload = parent + array("I", token_ids).tobytes()
        return BlockHash(hashlib.blake2b(payload, key=self._salt, digest_size=HASH_BYTES).digest())
