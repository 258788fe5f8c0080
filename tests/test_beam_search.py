"""Beam search against ``transformers``: the real model through the real engine process, and tiny random ones.

Sequences must be equal and scores agree within 1e-4. Two hypotheses whose scores differ by less may change
places, as sums in another order may rank them.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.beam import BeamSearch, Survivor
from engine.client import EngineClient, EngineDeadError
from engine.messages import AddRequest, BeamParams, FinishReason, SamplingParams, TokenDelta
from engine.schedule import SampledToken
from tests.support import reference
from tests.support.real_backend import RealBackend, load_deterministic
from tests.support.small_engine import SmallEngine
from tests.support.tiny_models import make_model, random_tokens
from tests.support.tiny_tokenizers import byte_level, save
from tests.test_greedy_equivalence import TEXTS, float32_engine

TOLERANCE = 1e-4  # of a score, or a millionth of it where that is more: float32 has no more digits
SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
MAX_TOKENS = 24 if SLOW else 8
PROMPTS = TEXTS if SLOW else TEXTS[:6]


class _Sink:
    def __init__(self) -> None:
        self.results: list[TokenDelta] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, delta: TokenDelta) -> None:
        self.results.append(delta)
        if delta.ends_request:
            self.done.set_result(None)

    def fail(self, error: EngineDeadError) -> None:
        self.done.set_exception(error)


async def search(client: EngineClient, name: str, prompt: Sequence[int], width: int) -> list[TokenDelta]:
    sink = _Sink()
    sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=0, n=width, beam=BeamParams(width))
    client.submit(AddRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling), sink)
    await sink.done
    return sink.results


def difference(ours: Sequence[tuple[list[int], float]], theirs: Sequence[reference.Beam]) -> str | None:
    """None if both are the same, but for the order of those that score alike."""
    if len(ours) != len(theirs):
        return f"{len(ours)} sequences, not {len(theirs)}"
    for (_, mine), their in zip(ours, theirs, strict=True):
        if not _is_equal(mine, their.score):
            return f"scores {[score for _, score in ours]}, not {[beam.score for beam in theirs]}"
    for token_ids, score in ours:
        if not any(_is_equal(score, beam.score) and token_ids == beam.token_ids for beam in theirs):
            return f"{token_ids} is none of {[beam.token_ids for beam in theirs]}"
    return None


def _is_equal(mine: float, theirs: float) -> bool:
    return abs(mine - theirs) <= max(TOLERANCE, 1e-6 * abs(theirs))


@pytest.mark.timeout(900)
async def test_the_real_model_finds_what_transformers_finds() -> None:
    encoded = [tuple(reference.tokenizer().encode(text)) for text in PROMPTS]
    async with float32_engine(400, max_num_seqs=32) as client:
        searches = {
            (width, prompt): search(client, f"r{width}.{i}", prompt, width)
            for width in (2, 4, 6)
            for i, prompt in enumerate(encoded)
        }
        found = dict(zip(searches, await asyncio.gather(*searches.values()), strict=True))
        report = await client.check_integrity()
        assert (report.problems, report.stats.blocks_in_use) == ((), 0)
        assert report.stats.block_copies_total > 0
    problems = {}
    for (width, prompt), results in found.items():
        assert [result.index for result in results] == list(range(width))
        ours = [(list(result.token_ids), result.score or 0.0) for result in results]
        theirs = reference.beams(reference.model(), prompt, width, MAX_TOKENS)
        problem = difference(ours, theirs)
        if problem is not None:
            problems[width, prompt] = problem
    assert problems == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
def test_stopping_and_length_penalty_mean_what_they_mean_there(
    tmp_path: Path, early_stopping: bool | str, length_penalty: float
) -> None:
    """On a random model of 101 tokens, which ends its texts at all lengths."""
    model = make_model()
    model.save_pretrained(tmp_path)
    save(byte_level(), tmp_path)
    loaded = load_deterministic(str(tmp_path), 64, dtype="float32")
    reasons = set()
    for number in range(12):
        width, prompt = 2 + number % 4, random_tokens(5 + number, seed=number)
        engine = SmallEngine(
            num_blocks=64,
            block_size=16,
            max_model_len=256,
            stop_token_ids=tuple(reference._as_list(model.generation_config.eos_token_id)),
            backend=RealBackend(loaded, 0, 0, tmp_path),
        )
        beam = BeamParams(width, length_penalty, early_stopping)  # type: ignore[arg-type]
        engine.add("r", prompt, max_tokens=30, n=width, beam=beam)
        engine.run()
        engine.assert_idle()
        ours = [(engine.sample("r", index), engine.scores["r", index]) for index in range(width)]
        options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        theirs = reference.beams(model, prompt, width, 30, **options)
        assert difference(ours, theirs) is None
        reasons |= set(engine.ended.values())
    if early_stopping is True:  # else the longest may win
        assert FinishReason.STOP in reasons


# ---- the search by itself --------------------------------------------------------------------------


def rows(*beams: dict[int, float]) -> list[list[SampledToken]]:
    """Of each beam its likeliest tokens."""
    return [
        [
            SampledToken(token, log_probability=score)
            for token, score in sorted(beam.items(), key=lambda i: -i[1])
        ]
        for beam in beams
    ]


def test_the_best_continuations_of_all_beams_live_on() -> None:
    search = BeamSearch(BeamParams(2), frozenset({9}), max_tokens=5)
    assert search.advance(rows({1: -1.0, 2: -1.5, 3: -9.0})) == (Survivor(0, 1), Survivor(0, 2))
    found = search.advance(rows({4: -3.0, 5: -4.0}, {6: -0.1, 7: -0.2}))
    assert found == (Survivor(1, 6), Survivor(1, 7)), "the worse beam has the better future"


def test_one_that_ends_outside_the_best_is_dropped() -> None:
    search = BeamSearch(BeamParams(2), frozenset({9}), max_tokens=5)
    assert search.advance(rows({1: -1.0, 2: -1.1, 9: -1.2})) == (Survivor(0, 1), Survivor(0, 2))
    assert search.best(2) == []
    search.advance(rows({9: -0.1, 3: -0.5}, {4: -0.2}))
    (best,) = search.best(2)
    assert [token.token_id for token in best.tokens] == [1, 9]
    assert best.score == pytest.approx(-1.1 / 2)


def test_a_search_without_any_continuation_is_done_with_nothing() -> None:
    search = BeamSearch(BeamParams(2), frozenset({1}), max_tokens=5)
    assert search.advance(rows({1: -math.inf, 2: -math.inf})) == ()
    assert search.done and search.best(2) == []


def test_a_search_that_finds_nothing_is_told_as_an_error(tmp_path: Path) -> None:
    """Every token ends the text, and none may at first."""
    make_model().save_pretrained(tmp_path)
    save(byte_level(), tmp_path)
    loaded = load_deterministic(str(tmp_path), 64, dtype="float32")
    engine = SmallEngine(
        num_blocks=64, block_size=16, max_model_len=256, backend=RealBackend(loaded, 0, 0, tmp_path)
    )
    every = tuple(range(loaded.info.vocab_size))
    engine.add(
        "r", random_tokens(5), max_tokens=4, n=2, beam=BeamParams(2), min_tokens=1, stop_token_ids=every
    )
    engine.add("wide", random_tokens(5), max_tokens=4, n=2, beam=BeamParams(200))
    engine.run()
    engine.assert_idle()
    assert "too few sequences" in engine.errors["r"]
    assert "wider than the vocabulary" in engine.errors["wide"]
