"""The engine on a CUDA device: the same greedy tokens as transformers computes on the CPU."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, MemorySize
from engine.execution.runner import load_runner
from engine.messages import SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput
from tests.support.tiny_models import make_model, oracle_greedy, random_tokens
from tests.support.tiny_tokenizers import byte_level, save
from tiering.movers.cuda import CudaMover
from tiering.types import BlockId, TransferId, TransferJob, TransferKind, TransferOutcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


def test_greedy_tokens_over_chunks_and_decodes(tmp_path: Path) -> None:
    oracle = make_model()
    oracle.save_pretrained(tmp_path)
    save(byte_level(), tmp_path)
    config = EngineConfig(
        model=str(tmp_path), device="cuda", dtype="float32", device_kv=MemorySize(num_bytes=2**24)
    )
    runner = load_runner(config, lambda *_: None).runner
    prompt = random_tokens(40)
    ids, start = list(prompt), 0
    params = SamplingParams(max_tokens=12, seed=0, temperature=0.0)
    for stop in (17, 40, *range(41, 52)):
        ask = SampleSpec(params, (0,), stop, tuple(prompt), tuple(ids[40:]), ()) if stop >= 40 else None
        chunk = ScheduledChunk("r", tuple(ids[start:stop]), start, tuple(range(3, 8)), ask)
        output = runner.execute(SchedulerOutput((chunk,)))
        ids += [sample.tokens[0].token_id for sample in output.samples]
        start = stop
    assert ids[40:] == oracle_greedy(oracle, prompt, 12)


@pytest.mark.parametrize("num_jobs", [1, 7, 64])
def test_blocks_survive_the_way_to_host_and_back_while_the_device_computes(num_jobs: int) -> None:
    """Bit for bit, in scattered and in neighbouring blocks, behind compute that writes the source."""
    shape = (128, 4, 2, 2, 16, 64)
    device = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
    host = torch.zeros(shape, dtype=torch.bfloat16).pin_memory()
    woken = threading.Event()
    mover = CudaMover(device, host, 50, woken.set)
    slots = torch.randperm(64)[:num_jobs].tolist() if num_jobs < 64 else list(range(64))
    noise = torch.randn(shape, dtype=torch.float32, device="cuda")
    device.copy_(torch.tanh(noise @ torch.randn(64, 64, device="cuda")).to(torch.bfloat16))  # still running
    expected = None
    for kind, offset in ((TransferKind.SWAP_OUT, 0), (TransferKind.SWAP_IN, 64)):
        ids = range(offset, offset + num_jobs)
        jobs = [
            TransferJob(TransferId(i), kind, BlockId(slot), BlockId(slot + offset), None)
            for i, slot in zip(ids, slots, strict=True)
        ]
        mover.submit(jobs)
        results = []
        while len(results) < num_jobs:
            assert woken.wait(10)
            mover.wait(1.0)
            results += mover.poll()
        assert {result.outcome for result in results} == {TransferOutcome.DONE}
        expected = device[slots].clone() if expected is None else expected
    assert torch.equal(device[[slot + 64 for slot in slots]], expected)
    mover.close()
