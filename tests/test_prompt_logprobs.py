"""Log probabilities of prompts by the real model in the real engine process, against transformers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

import pytest
import torch

from engine.client import EngineClient, EngineDeadError
from engine.messages import AddRequest, PromptLogprobs, SamplingParams, TokenDelta
from tests.support import reference
from tests.test_greedy_equivalence import assert_all_free, float32_engine, prompts

NUM_TOP = 5
TOLERANCE = 2e-3  # of a log probability; the model's own range here is 0 to -25


class _Sink:
    def __init__(self) -> None:
        self.found: PromptLogprobs | None = None
        self.num_tokens = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, delta: TokenDelta) -> None:
        if delta.prompt_logprobs is not None:
            assert self.found is None and self.num_tokens == 0
            self.found = delta.prompt_logprobs
        self.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self.done.set_result(None)

    def fail(self, error: EngineDeadError) -> None:
        self.done.set_exception(error)


async def score(client: EngineClient, prompt: Sequence[int], name: str, max_tokens: int) -> PromptLogprobs:
    sink = _Sink()
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, prompt_logprobs=NUM_TOP)
    client.submit(AddRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling), sink)
    await sink.done
    assert sink.found is not None
    return sink.found


@functools.cache
def expected(prompt: tuple[int, ...]) -> torch.Tensor:
    """The reference's log probabilities of all tokens after each position, ``[P, V]``."""
    with torch.inference_mode():
        return torch.log_softmax(reference.model()(torch.tensor([prompt])).logits[0].float(), dim=1)


def assert_agrees(prompt: tuple[int, ...], found: PromptLogprobs) -> None:
    assert len(found) == len(prompt) - 1
    if not len(found):
        return
    rows, entries = expected(prompt)[:-1], [*found.entries(NUM_TOP)]
    ours = torch.tensor([entry.logprob for entry, _ in entries])[:, None]
    theirs = rows.gather(1, torch.tensor(prompt[1:])[:, None])
    assert torch.allclose(ours, theirs, atol=TOLERANCE)
    ranks = torch.tensor([rank for _, rank in entries])
    assert ((rows > theirs + TOLERANCE).sum(dim=1) < ranks).all()
    assert ((rows > theirs - TOLERANCE).sum(dim=1) >= ranks).all()
    top_ids = torch.tensor([[token for token, _ in entry.top] for entry, _ in entries])
    top = torch.tensor([[logprob for _, logprob in entry.top] for entry, _ in entries])
    assert torch.allclose(top, rows.topk(NUM_TOP, dim=1).values, atol=TOLERANCE)
    assert torch.allclose(top, rows.gather(1, top_ids), atol=TOLERANCE)


@pytest.mark.timeout(600)
async def test_the_figures_are_those_of_the_reference_each_time() -> None:
    """One after the other, twice: the second time the cache has all of their blocks."""
    wanted = [prompt for prompt in prompts() if len(prompt) in (1, 17, 65, 130)]
    async with float32_engine(400) as client:
        for prompt in wanted:
            first = await score(client, prompt, "first", 1)
            assert_agrees(prompt, first)
            assert_agrees(prompt, await score(client, prompt, "second", 0))
        await assert_all_free(client)


@pytest.mark.timeout(600)
async def test_in_a_pool_so_small_that_prompts_are_preempted() -> None:
    wanted = [prompt for prompt in prompts() if len(prompt) >= 31]
    async with float32_engine(22, max_num_seqs=16) as client:
        found = await asyncio.gather(*(score(client, prompt, f"r{i}", 24) for i, prompt in enumerate(wanted)))
        await assert_all_free(client)
        assert client.stats.preemptions_total > 0
    for prompt, logprobs in zip(wanted, found, strict=True):
        assert_agrees(prompt, logprobs)
