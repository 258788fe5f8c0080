"""What ``auto`` means, and what is refused, on a machine whose memory and GPU the test makes up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from engine.config import ConfigError, EngineConfig, MemorySize
from engine.execution import hardware
from engine.execution.hardware import choose_hardware, default_threads, pool_bytes

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 GiB, 10 of them available."""
    monkeypatch.setattr(hardware, "device_memory", lambda device: hardware.DeviceMemory(16 * GIB, 10 * GIB))


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"--device cuda .*\.$"):
        choose_hardware(EngineConfig(model="", device="cuda"))
    assert choose_hardware(EngineConfig(model="", device="auto")).device.type == "cpu"


@pytest.mark.usefixtures("no_gpu")
def test_float16_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r"--dtype float16 .*\.$"):
        choose_hardware(EngineConfig(model="", dtype="float16"))


def test_a_gpu_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(hardware, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"a GPU needs triton, .*; --device cpu does without\."):
        choose_hardware(EngineConfig(model=""))
    assert choose_hardware(EngineConfig(model="", device="cpu")).device.type == "cpu"


def test_a_gpu_is_taken_unless_the_cpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    chosen = choose_hardware(EngineConfig(model=""))
    assert (chosen.device.type, chosen.dtype) == ("cuda", torch.bfloat16)
    assert choose_hardware(EngineConfig(model="", dtype="float16")).dtype is torch.float16
    assert choose_hardware(EngineConfig(model="", device="cpu")).device.type == "cpu"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_any_device_can_be_deterministic(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    chosen = choose_hardware(EngineConfig(model="", device=device, deterministic=True))
    assert chosen.device.type == device


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("native", [True, False])
def test_dtypes(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(hardware, "_has_native_bf16", lambda: native)
    automatic = choose_hardware(EngineConfig(model="")).dtype
    assert automatic is (torch.bfloat16 if native else torch.float32)
    for name in ("float32", "bfloat16"):
        assert choose_hardware(EngineConfig(model="", dtype=name)).dtype is getattr(torch, name)


@pytest.mark.parametrize(
    ("line", "native"),
    [
        ("flags\t: fpu avx512f avx512_bf16 x", True),
        ("flags\t: fpu avx512f avx512_bf16x", False),
        ("Features\t: fp asimd bf16", True),
        ("flags\t: fpu sse2", False),
        ("bogomips\t: 1", False),
    ],
)
def test_native_bf16_is_read_from_the_processor(
    monkeypatch: pytest.MonkeyPatch, line: str, native: bool
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: f"processor\t: 0\n{line}\n")
    assert hardware._has_native_bf16() is native


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, 1), (2, 2), (3, 2), (16, 15)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert default_threads() == expected
    assert choose_hardware(EngineConfig(model="", device="cpu", threads=5)).threads == 5


@pytest.mark.usefixtures("memory")
def test_pool_sizes() -> None:
    assert pool_bytes(None, CPU) == 4 * GIB
    assert pool_bytes(MemorySize(fraction=0.5), CPU) == 8 * GIB
    assert pool_bytes(MemorySize(num_bytes=10 * GIB), CPU) == 10 * GIB
    assert pool_bytes(None, torch.device("cuda")) == 9 * GIB


@pytest.mark.usefixtures("memory")
def test_steps_are_left_what_they_need() -> None:
    gpu = torch.device("cuda")
    assert pool_bytes(None, gpu, GIB) == 9 * GIB and pool_bytes(None, gpu, 3 * GIB) == 7 * GIB
    assert pool_bytes(None, gpu, 11 * GIB) == 0
    assert pool_bytes(MemorySize(num_bytes=7 * GIB), gpu, 3 * GIB) == 7 * GIB
    with pytest.raises(ConfigError, match=r"--device-kv .* 3\.00 GiB; .*--max-num-batched-tokens .*\.$"):
        pool_bytes(MemorySize(num_bytes=7 * GIB + 1), gpu, 3 * GIB)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("size", [MemorySize(num_bytes=10 * GIB + 1), MemorySize(fraction=0.75)], ids=str)
def test_more_than_there_is(size: MemorySize) -> None:
    with pytest.raises(ConfigError, match=r"--device-kv .*10\.00 GiB of 16\.00 GiB are available\.$"):
        pool_bytes(size, CPU)


def test_the_default_does_not_take_more_than_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "device_memory", lambda device: hardware.DeviceMemory(16 * GIB, 3 * GIB))
    assert pool_bytes(None, CPU) == 3 * GIB


def test_memory_is_within_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = hardware.device_memory(CPU)
    assert 0 < unlimited.available <= unlimited.total
    monkeypatch.setattr(hardware, "_control_group_limit", lambda: 2**20)
    assert hardware.device_memory(CPU) == hardware.DeviceMemory(2**20, 2**20)
