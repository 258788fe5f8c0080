"""The real model through the real engine process, against ``transformers.generate`` in float32.

Equal means equal ids; a difference counts as a near-tie only if the reference's own two best logits
are within 1e-4 there. The prompts are fixed here, and chosen by length for where paging goes wrong.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from engine.client import EngineClient, EngineDeadError
from engine.config import EngineConfig, MemorySize
from engine.messages import AddRequest, SamplingParams, TokenDelta
from tests.support import reference

MAX_TOKENS = 48 if os.environ.get("TIDEGATE_SLOW") == "1" else 12
BLOCK_BYTES = 30 * 2 * 3 * 16 * 64 * 4
CHUNK = 64

TEXTS = (
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 4, 5,",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is the largest planet?\nA:",
    "SELECT name, age FROM",
    "La vie est belle et",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "import numpy as np\n\ndef softmax(x):",
)
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 130, 200)
FILLER = (
    "A paged cache keeps the keys and values of a sequence in blocks of equal size that need not lie side by "
    "side. A table maps the position of a token to the block that holds it, as a page table maps an address. "
    "Sequences that begin alike may share their first blocks, and a block is copied only when one of them is "
    "about to write to it. When memory runs short, some sequence gives up its blocks and computes them again "
    "later, so that the others can go on; its reader sees a longer pause, and the same words. "
)


def prompts() -> list[tuple[int, ...]]:
    """24 prompts: texts, and cuts of one long text at lengths around block and chunk boundaries."""
    encode = reference.tokenizer().encode
    long = encode(FILLER * 4)
    cuts = [tuple(long[start : start + length]) for start, length in zip(range(12), LENGTHS, strict=True)]
    return [tuple(encode(text)) for text in TEXTS] + cuts


class _Sink:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, delta: TokenDelta) -> None:
        self.tokens += delta.token_ids
        if delta.finish_reason is not None:
            self.done.set_result(None)

    def fail(self, error: EngineDeadError) -> None:
        self.done.set_exception(error)


async def generate(client: EngineClient, prompt: Sequence[int], name: str) -> list[int]:
    sink = _Sink()
    sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=0, temperature=0.0)
    client.submit(AddRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling), sink)
    await sink.done
    return sink.tokens


@asynccontextmanager
async def float32_engine(num_blocks: int, **settings: int) -> AsyncIterator[EngineClient]:
    config = EngineConfig(
        model="",
        dtype="float32",
        device="cpu",
        device_kv=MemorySize(num_bytes=num_blocks * BLOCK_BYTES),
        max_model_len=320,
        max_num_batched_tokens=CHUNK,
        **settings,  # type: ignore[arg-type]
    )
    client = await EngineClient.start(config)
    try:
        yield client
    finally:
        await client.close()


def differences(answers: Sequence[list[int]]) -> list[str]:
    found = []
    for prompt, ids in zip(prompts(), answers, strict=True):
        problem = reference.disagreement(ids, reference.greedy(prompt, MAX_TOKENS))
        if problem is not None:
            found.append(f"prompt of {len(prompt)} tokens: {problem}")
    return found


async def assert_all_free(client: EngineClient) -> None:
    report = await client.check_integrity()
    assert report.problems == ()
    assert report.stats.blocks_in_use == 0


@pytest.mark.timeout(600)
async def test_one_at_a_time() -> None:
    async with float32_engine(400) as client:
        answers = [await generate(client, prompt, f"r{i}") for i, prompt in enumerate(prompts())]
        await assert_all_free(client)
    assert differences(answers) == []


@pytest.mark.timeout(600)
async def test_sixteen_at_once_in_a_mixed_batch() -> None:
    async with float32_engine(400, max_num_seqs=16) as client:
        num_running: list[int] = []
        client.add_step_listener(lambda report: num_running.append(report.stats.num_running))
        running = [generate(client, prompt, f"r{i}") for i, prompt in enumerate(prompts())]
        answers = await asyncio.gather(*running)
        await assert_all_free(client)
    assert max(num_running) == 16
    assert differences(answers) == []


@pytest.mark.timeout(600)
async def test_a_pool_so_small_that_sequences_are_preempted() -> None:
    async with float32_engine(22, max_num_seqs=16) as client:
        running = [generate(client, prompt, f"r{i}") for i, prompt in enumerate(prompts())]
        answers = await asyncio.gather(*running)
        await assert_all_free(client)
        stats = client.stats
    assert stats.preemptions_total > 0
    assert differences(answers) == []
