"""Settings of an engine and the numbers that describe a model. Imports no torch.

``EngineConfig`` travels from the gateway to the engine process; ``ModelConfig`` is read from a
checkpoint by ``engine.loading``. Sizes are given as bytes or as a share of the tier's own memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec


class ConfigError(ValueError):
    """A setting or a path that the user can put right. The message is one plain sentence."""


_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_ABSURD_BYTES = 2**60
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*|%)\s*")
_LOOKS_LIKE_A_SIZE = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?\s*(%|[a-z]?i?b?)|off", re.IGNORECASE)


class MemorySize(msgspec.Struct, frozen=True):
    """A number of bytes, or a fraction (0 < fraction <= 1) of the memory of the tier it is for."""

    num_bytes: int | None = None
    fraction: float | None = None

    def resolve(self, total_bytes: int) -> int:
        """Bytes that this size stands for on a tier with ``total_bytes`` of memory."""
        if self.num_bytes is not None:
            return self.num_bytes
        assert self.fraction is not None
        return int(self.fraction * total_bytes)

    def __str__(self) -> str:
        """In the form that ``parse_memory_size`` reads."""
        return str(self.num_bytes) if self.fraction is None else f"{self.fraction * 100:g}%"


def parse_memory_size(text: str) -> MemorySize:
    """Read ``512MiB``, ``2GiB``, ``1.5GB``, ``1048576`` or ``50%``.

    Raises ConfigError for anything else, for zero, and for more than 100 %.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write it like 512MiB, 2GiB or 50%.")
    number, unit = float(match.group(1)), match.group(2).lower()
    if unit != "%" and unit not in _UNITS:
        raise ConfigError(f"{text!r} has an unknown unit; use KiB, MiB, GiB, TiB or %.")
    if number <= 0:
        raise ConfigError(f"{text!r} is not above zero.")
    if number * _UNITS.get(unit, 1) >= _ABSURD_BYTES:
        raise ConfigError("That size is more than any machine has.")
    if unit == "%":
        if number > 100:
            raise ConfigError(f"{text!r} is more than all of it.")
        return MemorySize(fraction=number / 100)
    return MemorySize(num_bytes=int(number * _UNITS[unit]))


def parse_optional_size(text: str) -> MemorySize:
    """What ``parse_memory_size`` reads, or ``0`` or ``off`` for no such memory at all."""
    return MemorySize(num_bytes=0) if text in ("0", "off") else parse_memory_size(text)


def parse_share(text: str) -> float:
    """Read ``50%``, of anything, as 0.5. Raises ConfigError for what is not from 0% to 100%."""
    match = _SIZE.fullmatch(text)
    if match is None or match.group(2) != "%" or float(match.group(1)) > 100:
        raise ConfigError(f"{text!r} is not a share; write it like 50%, from 0% to 100%.")
    return float(match.group(1)) / 100


class DiskTier(msgspec.Struct, frozen=True):
    """A directory for KV blocks and the space to take there; None: choose when it is opened."""

    path: str
    size: MemorySize | None = None

    def __str__(self) -> str:
        """In the form that ``parse_disk_tier`` reads."""
        return self.path if self.size is None else f"{self.path}:{self.size}"


def parse_disk_tier(text: str) -> DiskTier:
    """Read ``PATH`` or ``PATH:SIZE``.

    Raises ConfigError for no path, for what follows the last colon, and for a size where the path should be.
    """
    path, colon, size = text.rpartition(":")
    if not colon:
        path = text
    if _LOOKS_LIKE_A_SIZE.fullmatch(path):
        raise ConfigError(
            f"{path!r} is a size where a directory should be; write it like /var/cache/kv:20GiB, and a"
            f" directory of that name like ./{path}."
        )
    if not path or "\0" in text:
        raise ConfigError(f"{text!r} is not a directory with a size; write it like /var/cache/kv:20GiB.")
    return DiskTier(path, parse_memory_size(size) if colon else None)


class EngineScript(msgspec.Struct, frozen=True):
    """Tokens that are made up instead of computed, as ``engine.scripted_core`` says."""

    tokens_per_s: float
    phases: int = 1


_SCRIPT = re.compile(r"scripted:([0-9]{1,6}(?:\.[0-9]{1,6})?)(?:/([0-9]{1,4}))?")


def parse_engine(text: str) -> EngineScript | None:
    """Read ``model`` as None, and ``scripted:RATE`` or ``scripted:RATE/PHASES``. Raises ConfigError."""
    if text == "model":
        return None
    match = _SCRIPT.fullmatch(text)
    if match is None or not (rate := float(match[1])) or not (phases := int(match[2] or 1)):
        raise ConfigError(f"{text!r} is no engine; write model, or scripted:RATE like scripted:20.")
    return EngineScript(rate, phases)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the engine process needs to start. None means: choose a sensible value at load."""

    model: str
    load_format: str = "auto"  # auto | dummy
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = "auto"  # auto | float32 | bfloat16 | float16
    max_model_len: int | None = None
    block_size: int = 16
    device_kv: MemorySize | None = None
    host_kv: MemorySize | None = None
    disk_kv: DiskTier | None = None
    eviction: str = "lru"
    write_policy: str = "back"
    restore: str = "adaptive"
    kv_checksums: bool = False
    deterministic: bool = False
    is_probe: bool = False  # started to look only: nothing that outlives the process is changed
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    seed: int = 0
    threads: int | None = None
    enable_prefix_caching: bool = True
    cache_secret: bytes = b""
    log_level: str = "info"
    grammar_timeout_s: float = 5.0
    script: EngineScript | None = None  # what to make up in place of computing with the model


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary position scaling. ``kind`` is ``default``, ``linear``, ``llama3`` or ``factors``.

    Field names follow the ``rope_scaling`` entry of Hugging Face configs; ``factors`` (one divisor per
    pair of dimensions) is how GGUF files store the Llama 3 scaling.
    """

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a Llama-family decoder."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
