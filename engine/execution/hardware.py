"""What there is to run on: device, dtype, memory and threads, and what ``auto`` means for each.

Runs on: step thread, once, at load.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from engine.config import ConfigError, EngineConfig, MemorySize

_DEFAULT_RAM_SHARE = 0.25
_DEFAULT_HBM_SHARE = 0.90  # of what is free once the weights are there, if steps need no more than the rest
_NATIVE_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True, slots=True)
class Hardware:
    """``threads`` are compute threads of a CPU engine; on a GPU they only serve the host side."""

    device: torch.device
    dtype: torch.dtype
    threads: int


def choose_hardware(config: EngineConfig) -> Hardware:
    """Resolve the ``auto`` settings. Raises ConfigError for a device or dtype that is not there."""
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise ConfigError("--device cuda was asked for, but torch finds no GPU here.")
    cores = len(os.sched_getaffinity(0))
    if config.threads is not None and config.threads > cores:
        raise ConfigError(f"--threads {config.threads} is more than the {cores} cores there are to use.")
    device = torch.device("cuda" if has_gpu and config.device != "cpu" else "cpu")
    if device.type == "cuda" and find_spec("triton") is None:
        raise ConfigError("a GPU needs triton, which is not installed; --device cpu does without.")
    if device.type == "cpu" and config.dtype == "float16":
        raise ConfigError("--dtype float16 needs a GPU; use bfloat16 or float32 on a CPU.")
    return Hardware(device, _choose_dtype(config.dtype, device), config.threads or default_threads())


def default_threads() -> int:
    """All cores up to two, then all but one: from three on, one is left to the gateway.

    On two cores the model gains more from the second core than the gateway, which needs a few percent
    of one at the rates that two cores can generate, loses by sharing it.
    """
    cores = len(os.sched_getaffinity(0))
    return cores if cores <= 2 else cores - 1


def _choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    return torch.bfloat16 if device.type == "cuda" or _has_native_bf16() else torch.float32


def _has_native_bf16() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        if line.startswith(("flags", "Features")):
            return not _NATIVE_BF16_FLAGS.isdisjoint(line.split())
    return False


def pool_bytes(size: MemorySize | None, device: torch.device, step_bytes: int = 0) -> int:
    """Bytes of the device tier, which leaves ``step_bytes`` of a GPU's memory to steps.

    Raises ConfigError if the device has not that much available.
    """
    memory = device_memory(device)
    if size is None:
        if device.type == "cuda":
            return max(0, min(int(_DEFAULT_HBM_SHARE * memory.available), memory.available - step_bytes))
        return int(min(_DEFAULT_RAM_SHARE * memory.total, memory.available))
    wanted = size.resolve(memory.total)
    if memory.available - step_bytes < wanted <= memory.available:
        raise ConfigError(
            f"--device-kv asks for {_gib(wanted)} of the {_gib(memory.available)} that are available, but"
            f" steps take up to {_gib(step_bytes)}; lower it, --max-num-batched-tokens or --max-num-seqs."
        )
    if wanted > memory.available:
        raise ConfigError(
            f"--device-kv asks for {_gib(wanted)}, but only {_gib(memory.available)}"
            f" of {_gib(memory.total)} are available."
        )
    return wanted


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes."""

    total: int
    available: int


def device_memory(device: torch.device) -> DeviceMemory:
    """Bytes of the device's memory; for RAM, within the control group's limit."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total, free)
    fields = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
    }
    limit = _control_group_limit()
    return DeviceMemory(min(fields["MemTotal"], limit), min(fields["MemAvailable"], limit))


def _control_group_limit() -> int:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        text = "max"
    return int(text) if text.isdigit() else 2**62


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
