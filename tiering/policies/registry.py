"""Policies by name: built-in, ``module:Class``, or an entry point of an installed package.

Entry-point groups: ``tidegate.eviction``, ``tidegate.write``, ``tidegate.restore``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from tiering.policies.eviction import (
    CostAwareEviction,
    EvictionPolicy,
    FifoEviction,
    LfuEviction,
    LruEviction,
    S3FifoEviction,
    SessionAwareEviction,
)
from tiering.policies.restore import Adaptive, Overlap, Recompute, RestorePolicy, Swap
from tiering.policies.write import WriteBack, WritePolicy, WriteSelective, WriteThrough

EVICTION: Mapping[str, Callable[[], EvictionPolicy]] = {
    "lru": LruEviction,
    "fifo": FifoEviction,
    "lfu": LfuEviction,
    "s3fifo": S3FifoEviction,
    "cost_aware": CostAwareEviction,
    "session_aware": SessionAwareEviction,
}
WRITE: Mapping[str, Callable[[], WritePolicy]] = {
    "back": WriteBack,
    "through": WriteThrough,
    "selective": WriteSelective,
}
RESTORE: Mapping[str, Callable[[], RestorePolicy]] = {
    "recompute": Recompute,
    "swap": Swap,
    "adaptive": Adaptive,
    "overlap": Overlap,
}


class PolicyError(ValueError):
    """A policy that is not there, or is not one. The message is one plain sentence for the user."""


def eviction_factory(spec: str) -> Callable[[], EvictionPolicy]:
    """Maker of the eviction policy that ``spec`` names. Raises PolicyError."""
    return _factory(
        spec, "eviction", EVICTION, ("name", "add", "take", "forget", "victims", "__len__", "__iter__")
    )


def write_factory(spec: str) -> Callable[[], WritePolicy]:
    """Maker of the write policy that ``spec`` names. Raises PolicyError."""
    return _factory(spec, "write", WRITE, ("name", "cleans_ahead", "stores_ready", "stores_hit"))


def restore_factory(spec: str) -> Callable[[], RestorePolicy]:
    """Maker of the restore policy that ``spec`` names. Raises PolicyError."""
    return _factory(spec, "restore", RESTORE, ("name", "restore", "keeps"))


def _factory(
    spec: str, kind: str, builtin: Mapping[str, Callable[[], Any]], members: tuple[str, ...]
) -> Callable[[], Any]:
    if spec in builtin:
        return builtin[spec]
    factory = _import(spec, kind) if ":" in spec else _entry_point(spec, kind, builtin)
    try:
        policy = factory()
    except Exception as error:
        raise PolicyError(f"The {kind} policy {spec} cannot be made without arguments: {error}.") from error
    missing = [member for member in members if not hasattr(policy, member)]
    if missing:
        raise PolicyError(f"{spec} is no {kind} policy: it has no {', '.join(missing)}.")
    return factory


def _import(spec: str, kind: str) -> Callable[[], Any]:
    module_name, _, attribute = spec.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise PolicyError(f"The {kind} policy {spec} cannot be imported: {error}.") from error
    if not callable(factory):
        raise PolicyError(f"{spec} is no {kind} policy: it is not a class.")
    made: Callable[[], Any] = factory
    return made


def _entry_point(spec: str, kind: str, builtin: Mapping[str, Any]) -> Callable[[], Any]:
    group = metadata.entry_points(group=f"tidegate.{kind}")
    if spec not in group.names:
        known = ", ".join([*builtin, *sorted(group.names)])
        raise PolicyError(f"There is no {kind} policy {spec!r}; there are {known}, or name a module:Class.")
    try:
        loaded: Callable[[], Any] = group[spec].load()
    except Exception as error:
        raise PolicyError(f"The {kind} policy {spec} cannot be loaded: {error}.") from error
    return loaded
