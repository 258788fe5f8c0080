"""What is asked of torch and of the driver for a GPU's mover, with stand-ins for both that copy CPU memory.

It holds the plumbing: names, keywords, handles, ends of copies, the current stream. What torch's own objects
do is theirs; that they take such calls is held against their signatures.
"""

from __future__ import annotations

import inspect
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.config import ConfigError, DiskTier, EngineConfig, MemorySize
from engine.execution.tiers import build_tiers
from tests.gateway.house import engine_info
from tests.test_cuda_driver import FakeLibrary
from tiering.memory.host_pool import HostPool
from tiering.memory.layout import KVLayout
from tiering.movers import cuda_streams
from tiering.movers.checksums import HostChecksums
from tiering.movers.copy_stream import CopyError
from tiering.movers.cuda_driver import CudaDriver
from tiering.movers.cuda_streams import CudaCopyStream, CudaPinning, cuda_mover
from tiering.types import BlockId, TransferId, TransferJob, TransferKind, TransferOutcome

OUT, IN = TransferKind.SWAP_OUT, TransferKind.SWAP_IN
DEVICE = torch.device("cuda", 0)
PATIENCE_S = 60


class FakeTorchEvent:
    def __init__(self, log: list[tuple[object, ...]], **options: object) -> None:
        inspect.signature(torch.cuda.Event.__new__).bind(torch.cuda.Event, **options)
        assert options == {"enable_timing": True, "blocking": True}
        self._log = log

    def record(self, stream: Any) -> None:
        self._log.append(("record", stream.cuda_stream))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: FakeTorchEvent) -> float:
        return 0.5  # milliseconds


class FakeTorchStream:
    def __init__(self, log: list[tuple[object, ...]], handle: int, error: str | None = None) -> None:
        self.cuda_stream = handle
        self._log = log
        self._error = error

    def wait_stream(self, other: FakeTorchStream) -> None:
        if self._error is not None:
            raise RuntimeError(self._error)
        self._log.append(("wait", self.cuda_stream, other.cuda_stream))

    def synchronize(self) -> None:
        self._log.append(("synchronize", self.cuda_stream))


class Machine:
    """``torch.cuda`` and the driver, as far as the mover asks them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        self.log: list[tuple[object, ...]] = []
        self.library = FakeLibrary(version)
        self.registered: dict[int, int] = {}
        self.answer = 0
        self.is_capturing = False
        self.error: str | None = None
        self._handles = iter(range(0x1000, 0x9000, 0x100))
        compute = FakeTorchStream(self.log, 0)  # the legacy default stream, which compute may be on
        cudart = SimpleNamespace(cudaHostRegister=self._register, cudaHostUnregister=self._unregister)
        for name, stand_in in {
            "Stream": lambda device: FakeTorchStream(self.log, next(self._handles), self.error),
            "Event": lambda **options: FakeTorchEvent(self.log, **options),
            "current_stream": lambda device: compute,
            "is_current_stream_capturing": lambda: self.is_capturing,
            "cudart": lambda: cudart,
        }.items():
            assert hasattr(torch.cuda, name)
            monkeypatch.setattr(torch.cuda, name, stand_in)
        driver = CudaDriver(self.library.get_proc_address)
        monkeypatch.setattr(cuda_streams.CudaDriver, "load", lambda: driver)
        self.driver = driver

    def _register(self, address: int, num_bytes: int, flags: int) -> int:
        assert flags == 0
        if not self.answer:
            self.registered[address] = num_bytes
        return self.answer

    def _unregister(self, address: int) -> int:
        return self.answer or int(self.registered.pop(address, None) is None)


class FakePool:
    """A tensor ``[N, ...]`` that says it is on a GPU."""

    is_cuda = True
    device = DEVICE

    def __init__(self, blocks: npt.NDArray[np.uint8]) -> None:
        self._blocks = blocks
        self.shape = (len(blocks), 2, blocks.shape[1] // 2)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        block: npt.NDArray[np.uint8] = self._blocks[index]
        return block

    def data_ptr(self) -> int:
        return self._blocks.ctypes.data

    def is_contiguous(self) -> bool:
        return True


@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize(
    ("version", "name"),
    [
        (12040, "one copy a run of blocks"),
        (12080, "batched copies as of CUDA 12.8"),
        (13000, "batched copies as of CUDA 12.8"),
    ],
)
def test_a_mover_of_a_whole_machine(
    version: int, name: str, pins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, version)
    machine.answer = 0 if pins else 2
    blocks = np.zeros((16, 4096), dtype=np.uint8)
    memory = HostPool(16, 4096, lambda: None, CudaPinning())
    woken = threading.Event()
    mover = cuda_mover(FakePool(blocks), memory, HostChecksums(16), woken.set)  # type: ignore[arg-type]
    memory.wait_ready()
    assert mover.description.startswith(name if pins else "one copy a run of blocks")
    assert mover.description.endswith("GB/s in")
    sent = np.random.default_rng(0).integers(0, 256, blocks.shape, dtype=np.uint8)
    blocks[:] = sent
    for kind in (OUT, IN):
        jobs = [TransferJob(TransferId(i), kind, BlockId(i), BlockId(15 - i), None) for i in range(16)]
        if kind is IN:
            blocks[:] = 0
        mover.submit(jobs)
        ended = []
        while len(ended) < 16:
            mover.wait(PATIENCE_S)
            ended += mover.poll()
        assert {result.outcome for result in ended} == {TransferOutcome.DONE}
        assert ended[0].copy_s >= 0.0005 / 16
    np.testing.assert_array_equal(memory.slots[::-1], sent)
    np.testing.assert_array_equal(blocks, sent)
    assert woken.is_set()
    mover.close()
    assert bool(machine.registered) == pins
    memory.close()
    assert machine.registered == {}
    waits = [entry for entry in machine.log if entry[0] == "wait"]
    assert waits and all(stream in machine.library.streams and compute == 0 for _, stream, compute in waits)
    assert 0 not in machine.library.streams


def test_when_the_first_entry_fails_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(monkeypatch, 13000)
    machine.library.answers["batch of 12.8"] = 801
    memory = HostPool(16, 4096, lambda: None, CudaPinning())
    pool = FakePool(np.zeros((16, 4096), dtype=np.uint8))
    mover = cuda_mover(pool, memory, None, lambda: None)  # type: ignore[arg-type]
    assert mover.description.startswith("batched copies as of CUDA 13.0")
    assert "CUDA_ERROR_NOT_SUPPORTED" in caplog.text
    mover.close()
    memory.close()


LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, block_size=16, head_dim=8, dtype_bytes=4)


def loaded(num_blocks: int) -> Any:
    """What loading would give on a GPU, as far as tiers are built from it."""
    pool = FakePool(np.zeros((num_blocks, LAYOUT.block_bytes), dtype=np.uint8))
    return SimpleNamespace(pool=pool, layout=LAYOUT, fingerprint=b"f" * 16, info=engine_info(""))


def test_an_engine_on_a_gpu_builds_its_tiers_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, 13000)
    config = EngineConfig(
        model="",
        host_kv=MemorySize(num_bytes=40 * LAYOUT.block_bytes),
        disk_kv=DiskTier(str(tmp_path / "kv"), MemorySize(num_bytes=2**20)),
        kv_checksums=True,
    )
    kv = build_tiers(config, loaded(20), lambda: None, time.perf_counter)
    assert kv.host_blocks == 40
    assert kv.host_link.startswith("batched copies as of CUDA 12.8, ")
    assert not any("checksums" in note for note in kv.notes)
    jobs = [TransferJob(TransferId(i), OUT, BlockId(i), BlockId(i), None) for i in range(20)]
    kv.transfers.submit(jobs)
    assert [result.outcome for result in kv.transfers.drain(PATIENCE_S)] == [TransferOutcome.DONE] * 20
    kv.transfers.close()
    assert machine.registered
    kv.release_memory()
    assert machine.registered == {}


def test_a_gpu_whose_copies_do_not_work_is_the_users_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 12040)
    machine.library.answers["copy"] = 801
    config = EngineConfig(model="", host_kv=MemorySize(num_bytes=40 * LAYOUT.block_bytes))
    with pytest.raises(ConfigError, match=r"CUDA_ERROR_NOT_SUPPORTED.*; --host-kv off does without\.$"):
        build_tiers(config, loaded(20), lambda: None, time.perf_counter)
    assert machine.registered == {}


def test_torchs_errors_are_told_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 13000)
    machine.error = "CUDA error: out of memory\nCUDA kernel errors might be ..."
    stream = CudaCopyStream(DEVICE, OUT, machine.driver, None)
    with pytest.raises(CopyError, match=r"^CUDA error: out of memory$"):
        stream.wait_for_compute()


def test_nothing_is_moved_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 13000)
    machine.is_capturing = True
    with pytest.raises(AssertionError, match="while a graph is captured"):
        CudaCopyStream(DEVICE, IN, machine.driver, None).wait_for_compute()
    assert machine.log == []


def test_blocks_are_moved_beside_the_stream_of_the_beginning_only(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 13000)
    stream = CudaCopyStream(DEVICE, IN, machine.driver, None)
    stream.wait_for_compute()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeTorchStream(machine.log, 7))
    with pytest.raises(AssertionError, match="another stream than steps are computed on"):
        stream.wait_for_compute()
    assert len(machine.log) == 1


def test_an_event_that_was_given_back_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = CudaCopyStream(DEVICE, IN, Machine(monkeypatch, 13000).driver, None)
    first, second = stream.record(), stream.record()
    assert first.event is not second.event
    stream.reuse(first)
    assert stream.record().event is first.event
    assert stream.record().event not in (first.event, second.event)


def test_pinning_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 13000)
    pinning = CudaPinning()
    pinning.pin(4096, 8192)
    assert machine.registered == {4096: 8192}
    pinning.unpin(4096)
    machine.answer = 712
    with pytest.raises(OSError, match="cudaHostRegister answered error 712"):
        pinning.pin(4096, 8192)
    with pytest.raises(OSError, match="cudaHostUnregister answered error 712"):
        pinning.unpin(4096)
