"""The engine on a CUDA device: the same greedy tokens as transformers computes on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, MemorySize
from engine.execution.runner import load_runner
from engine.messages import SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput
from tests.support.tiny_models import make_model, oracle_greedy, random_tokens
from tests.support.tiny_tokenizers import byte_level, save

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
