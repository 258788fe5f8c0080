"""Who a key belongs to: tenants, their keys' digests, and the salt that keeps their caches apart.

Pure. A key is looked up by its SHA-256: what a caller can vary is hashed before anything is compared, so
the time of the look-up tells nothing about any key, and no key is kept. A plain hash is right here because
keys are random: of 256 random bits none can be found by trying, however fast the hash; slow hashes are for
what people choose. The salt comes from the tenant, never from a caller: all keys of a tenant of the keys
file find what any of them computed, and a new key finds it too. A tenant that is one ``--api-key`` has
nothing else that is its own and lasts, so its salt comes from that key.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType

from gateway.limits import NO_LIMITS, Limits

API_KEY_PREFIX = "api-key-"
"""Names of tenants that are one ``--api-key`` each; no other tenant's begins so."""
KeyDigest = NewType("KeyDigest", bytes)
"""What may be kept of a key to know it again."""
EMPTY_DIGEST = KeyDigest(hashlib.sha256(b"").digest())
"""Of no key at all, which must not be one."""
_NEW_KEY_PREFIX = "tg-"
_NEW_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who gets a share, a cache and limits of its own.

    ``name`` is never derived from a key. ``is_listed``: it is in the keys file, so that its name may label
    metrics. ``allows_priority``: it may ask for more than the default priority among its own requests.
    ``kv_quota``: the share of each tier that it may keep, None for that of the house.
    """

    name: str
    cache_salt: bytes = field(repr=False)
    weight: float = 1.0
    limits: Limits = NO_LIMITS
    allows_priority: bool = True
    is_listed: bool = False
    kv_quota: float | None = None

    @property
    def owner(self) -> str:
        """As whom it is known in what outlives the server: its name, or what comes of the one key that it is.

        The names of API keys are numbers in an order that another start may change.
        """
        if not self.name.startswith(API_KEY_PREFIX):
            return self.name
        return API_KEY_PREFIX + hashlib.blake2s(self.cache_salt, person=b"owner").hexdigest()


ANONYMOUS = Tenant(name="", cache_salt=b"")
"""Everybody, on a server without keys."""


class Keyring:
    """Tenants by the digest of their keys. Never changes; a reload makes another.

    ``heaviest_of_several``: the highest weight, None if there are not several tenants.
    """

    def __init__(self, tenants_by_digest: Mapping[bytes, Tenant]) -> None:
        self._tenants = dict(tenants_by_digest)
        weights = {tenant.name: tenant.weight for tenant in self._tenants.values()}
        self.heaviest_of_several = max(weights.values()) if len(weights) > 1 else None

    def __len__(self) -> int:
        return len(self._tenants)

    def find(self, key: KeyDigest) -> Tenant | None:
        """Whose key this is; None if it is nobody's."""
        return self._tenants.get(key)

    def __repr__(self) -> str:
        return f"Keyring({len(self)} keys)"


@dataclass(frozen=True, slots=True)
class ListedTenant:
    """A tenant of the keys file, with the SHA-256 digests of its keys."""

    tenant: Tenant
    digests: tuple[bytes, ...] = field(repr=False)


class DuplicateKeyError(ValueError):
    """Two tenants have the same key, so that nobody can say whose it is."""


def make_keyring(api_keys: Sequence[str], listed: Iterable[ListedTenant]) -> Keyring:
    """Every API key is a tenant of its own. Raises DuplicateKeyError."""
    found: dict[bytes, Tenant] = {}
    for number, api_key in enumerate(dict.fromkeys(api_keys), start=1):
        salt = hashlib.blake2s(key_bytes(api_key)).digest()
        found[_digest(api_key)] = Tenant(f"{API_KEY_PREFIX}{number}", salt)
    for entry in listed:
        for digest in entry.digests:
            other = found.setdefault(digest, entry.tenant)
            if other is not entry.tenant:
                raise DuplicateKeyError(f"{entry.tenant.name} and {other.name} have the same key")
    return Keyring(found)


def salt_of(name: str, cache_group: str | None) -> bytes:
    """Of a tenant of the keys file. Tenants find each other's blocks if both name one group, only then."""
    if cache_group is not None:
        return hashlib.blake2s(cache_group.encode(), person=b"group").digest()
    return hashlib.blake2s(name.encode(), person=b"tenant").digest()


def hash_key(key: str) -> str:
    """What the keys file has instead of a key: its SHA-256, in hex."""
    return _digest(key).hex()


def new_key() -> str:
    """A key of 256 random bits."""
    return _NEW_KEY_PREFIX + secrets.token_urlsafe(_NEW_KEY_BYTES)


def key_bytes(key: str) -> bytes:
    """A key of the environment or the command line as it was given, be it UTF-8 or not."""
    return key.encode("utf-8", errors="surrogateescape")


def digest_of(key: bytes) -> KeyDigest:
    return KeyDigest(hashlib.sha256(key).digest())


def _digest(key: str) -> KeyDigest:
    return digest_of(key_bytes(key))
