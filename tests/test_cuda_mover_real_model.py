"""Greedy text is the same when a GPU's mover swaps its blocks, over a device that copies when it likes.

The model computes on the CPU, in its pool; the device copies between that and host memory beside the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.execution.runner import LoadedRunner
from engine.execution.tiers import as_bytes
from tests.support.fake_cuda import FakeDevice
from tests.support.real_backend import RealBackend, load_deterministic
from tests.support.small_engine import SmallEngine
from tests.support.tiny_models import make_model
from tests.support.tiny_tokenizers import byte_level, save
from tests.test_tiers_real_model import generate, prompts
from tiering.memory import host_pool
from tiering.memory.host_pool import HostPool
from tiering.movers.checksums import HostChecksums
from tiering.movers.cuda import CudaMover
from tiering.types import TransferKind

NUM_REQUESTS = 16
MAX_TOKENS = 28
SEQUENCE_BLOCKS = 6
HOST_BLOCKS = 60


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedRunner:
    directory = tmp_path_factory.mktemp("tiny-model")
    make_model().save_pretrained(directory)
    save(byte_level(), directory)
    return load_deterministic(str(directory), NUM_REQUESTS * SEQUENCE_BLOCKS + 8, dtype="float32")


def engine(loaded: LoadedRunner, num_blocks: int, directory: Path, link: CudaMover | None) -> SmallEngine:
    return SmallEngine(
        num_blocks=num_blocks,
        block_size=16,
        host_blocks=HOST_BLOCKS if link is not None else 0,
        max_model_len=SEQUENCE_BLOCKS * 16,
        max_num_seqs=NUM_REQUESTS,
        max_num_batched_tokens=128,
        backend=RealBackend(loaded, 1, 0, directory),
        link=link,
    )


@pytest.fixture
def expected(loaded: LoadedRunner, tmp_path: Path) -> list[list[int]]:
    roomy = engine(loaded, NUM_REQUESTS * SEQUENCE_BLOCKS, tmp_path, None)
    return generate(roomy, prompts(NUM_REQUESTS, loaded.info.vocab_size), MAX_TOKENS)


class Link:
    """The mover, its device and its memory."""

    def __init__(self, loaded: LoadedRunner, *, is_batched: bool, seed: int) -> None:
        self.device = FakeDevice(as_bytes(loaded.pool), seed)
        block_bytes = loaded.layout.block_bytes
        self.memory = HostPool(HOST_BLOCKS, block_bytes, lambda: None, self.device.pinning)
        self.memory.wait_ready()
        self.memory.slots[:] = 0xFF  # NaN: nothing unwritten must ever be read
        path = self.device.path(self.memory.slots, is_batched=is_batched)
        ends = self.device.ends(self.memory.slots)
        self.mover = CudaMover(ends, self.memory, path, HostChecksums(HOST_BLOCKS), lambda: None)

    def close(self) -> None:
        self.mover.close()
        self.memory.close()


@pytest.fixture(params=[True, False], ids=["batched", "singly"])
def link(
    loaded: LoadedRunner, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Link]:
    monkeypatch.setattr(host_pool, "_CHUNK_BYTES", 8 * loaded.layout.block_bytes)
    made = Link(loaded, is_batched=request.param, seed=3)
    with made.device.running():
        yield made
        made.close()


def test_text_is_the_same_with_swaps_as_without(
    loaded: LoadedRunner, expected: list[list[int]], link: Link, tmp_path: Path
) -> None:
    tight = engine(loaded, 2 * SEQUENCE_BLOCKS, tmp_path, link.mover)
    assert generate(tight, prompts(NUM_REQUESTS, loaded.info.vocab_size), MAX_TOKENS) == expected
    totals = tight.transfers.totals  # how many there are depends on how late copies come
    assert totals[TransferKind.SWAP_OUT].num_done > 0 and totals[TransferKind.SWAP_IN].num_done > 0
    assert sum(t.num_failed + t.num_corrupt for t in totals.values()) == 0


def test_text_is_the_same_when_copies_fail(
    loaded: LoadedRunner, expected: list[list[int]], link: Link, tmp_path: Path
) -> None:
    link.device.refuses_batches = True
    link.device.failing_copies = set(range(1, 10**5, 5))
    link.device.failing_records = set(range(7, 10**5, 40))
    tight = engine(loaded, 2 * SEQUENCE_BLOCKS, tmp_path, link.mover)
    assert generate(tight, prompts(NUM_REQUESTS, loaded.info.vocab_size), MAX_TOKENS) == expected
    totals = tight.transfers.totals
    assert totals[TransferKind.SWAP_OUT].num_failed > 0 and totals[TransferKind.SWAP_OUT].num_done > 0
