"""What the endpoints that tell about the server answer, as wire structs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from engine.stats import KvCosts, SequenceKv
from gateway.openai.chat import Capabilities
from gateway.openai.notes import one_of

CONDITIONS = ("ok", "draining", "stalled", "restarting", "dead")


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tidegate"
    max_model_len: int
    capabilities: Capabilities


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(msgspec.Struct, kw_only=True):
    status: Annotated[str, one_of(CONDITIONS)]
    running: int
    waiting: int


class Version(msgspec.Struct, kw_only=True):
    version: str


class Integrity(msgspec.Struct, kw_only=True):
    problems: tuple[str, ...]
    stats: dict[str, Any]


class KvPlaces(msgspec.Struct, kw_only=True):
    """``tiers`` and ``transfers`` by name, with the engine's figures of each."""

    tiers: dict[str, dict[str, Any]]
    transfers: dict[str, dict[str, Any]]
    costs: KvCosts
    num_requests: int
    sequences: tuple[SequenceKv, ...]
