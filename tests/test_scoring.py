"""Log probabilities of prompts: complete, once, whatever the chunks, hits and preemptions."""

from __future__ import annotations

import pytest

from engine.messages import BeamParams, Branch, FinishReason, ForkRequest, SamplingParams
from engine.scoring import PromptScoring
from tests.support.fake_kv import expected_beams, expected_scores, expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.movers.base import Mischief


def prompt(number: int, length: int) -> list[int]:
    return [(number * 29 + i * 13) % 1000 for i in range(length)]


@pytest.mark.case("B12")
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 18, 40])
@pytest.mark.parametrize("num_top", [0, 3])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_the_whole_list_comes_once_with_the_first_token(
    length: int, num_top: int, prefix_caching: bool
) -> None:
    engine = SmallEngine(num_blocks=32, prefix_caching=prefix_caching)
    engine.add("r", prompt(1, length), max_tokens=3, prompt_logprobs=num_top)
    for _ in range(-(-length // 16) - 1):
        engine.step()
        assert engine.prompt_logprobs == {}, "nothing before the last chunk"
    engine.step()
    assert len(engine.tokens["r"]) == 1
    assert engine.prompt_logprobs == {"r": expected_scores(prompt(1, length), num_top)}
    engine.run()
    assert engine.tokens["r"] == expected_tokens(prompt(1, length), 3)


@pytest.mark.case("B11")
def test_the_same_prompt_again_has_the_same_list_and_its_blocks_are_found_by_others() -> None:
    engine = SmallEngine()
    for name in ("first", "second"):
        engine.add(name, prompt(1, 14), max_tokens=2, prompt_logprobs=1)
        engine.run()
        assert engine.prompt_logprobs[name] == expected_scores(prompt(1, 14), 1)
        assert engine.cached[name] == 0
    engine.add("plain", prompt(1, 14), max_tokens=2)
    engine.run()
    assert engine.cached["plain"] == 12
    assert "plain" not in engine.prompt_logprobs
    engine.assert_idle()


def test_two_at_once_end_up_with_the_same_blocks() -> None:
    engine = SmallEngine(num_blocks=32, max_num_batched_tokens=64)
    for name in ("a", "b"):
        engine.add(name, prompt(1, 24), max_tokens=8, prompt_logprobs=0)
    engine.step()
    assert engine.blocks.usage().in_use == 6
    engine.run()
    assert engine.prompt_logprobs["a"] == engine.prompt_logprobs["b"] == expected_scores(prompt(1, 24), 0)


@pytest.mark.parametrize("restore", ["recompute", "swap", "overlap"])
@pytest.mark.parametrize("failure_rate", [0.0, 0.5])
def test_a_preemption_at_any_step_changes_nothing(restore: str, failure_rate: float) -> None:
    for step in range(1, 10):
        engine = SmallEngine(
            num_blocks=24,
            host_blocks=24,
            restore=restore,
            mischief=Mischief(seed=step, max_delay_polls=3, failure_rate=failure_rate, shuffles=True),
            max_num_seqs=2,
            max_num_batched_tokens=6,
        )
        engine.add("r", prompt(1, 30), max_tokens=6, prompt_logprobs=2)
        for _ in range(step):
            engine.step()
        engine.scheduler.preempt(engine.scheduler.queues.running["r"])
        engine.run()
        assert engine.prompt_logprobs["r"] == expected_scores(prompt(1, 30), 2)
        assert engine.tokens["r"] == expected_tokens(prompt(1, 30), 6)
        engine.assert_idle()


def test_what_was_found_before_a_preemption_is_not_computed_again() -> None:
    engine = SmallEngine(max_num_batched_tokens=8)
    engine.add("r", prompt(1, 28), max_tokens=1, prompt_logprobs=0)
    engine.step()
    engine.step()
    engine.scheduler.preempt(engine.scheduler.queues.running["r"])
    engine.run()
    assert engine.executor.num_computed_tokens == 28
    assert engine.prompt_logprobs["r"] == expected_scores(prompt(1, 28), 0)


def test_blocks_of_another_are_not_taken_where_nothing_is_found_yet() -> None:
    """It comes back after another request has computed all of the same prompt."""
    engine = SmallEngine(num_blocks=32, max_num_batched_tokens=8)
    engine.add("r", prompt(1, 28), max_tokens=1, prompt_logprobs=0)
    engine.step()
    engine.core.pause("r")
    engine.scheduler.preempt(engine.scheduler.queues.running["r"])
    engine.add("other", prompt(1, 28), max_tokens=1)
    for _ in range(6):
        engine.step()
    assert "other" in engine.finished
    engine.core.resume("r")
    engine.run()
    assert engine.executor.num_computed_tokens == 28 + 20, "each begins with the first 8"
    assert engine.prompt_logprobs["r"] == expected_scores(prompt(1, 28), 0)


def test_samples_share_one_list() -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("r", prompt(1, 20), max_tokens=4, n=3, prompt_logprobs=1)
    engine.step()
    engine.core.abort("r", 0)
    engine.run()
    assert engine.prompt_logprobs == {"r": expected_scores(prompt(1, 20), 1)}
    assert [len(engine.sample("r", index)) for index in range(3)] == [0, 4, 4]


def test_beams_tell_it_with_their_results() -> None:
    engine = SmallEngine(num_blocks=32)
    beam = BeamParams(3)
    engine.add("r", prompt(1, 20), max_tokens=4, n=2, beam=beam, prompt_logprobs=1)
    engine.run()
    assert engine.prompt_logprobs == {"r": expected_scores(prompt(1, 20), 1)}
    found = [engine.sample("r", index) for index in range(2)]
    assert found == expected_beams(prompt(1, 20), beam, 2, 4)


def test_a_fork_may_ask_for_what_was_generated() -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("r", prompt(1, 9), max_tokens=5)
    engine.run()
    branch = Branch(request_id="s", sampling=SamplingParams(max_tokens=1, seed=0, prompt_logprobs=2))
    engine.core.fork(ForkRequest(request_id="r", branches=(branch,)))
    engine.run()
    assert engine.prompt_logprobs["s"] == expected_scores([*prompt(1, 9), *engine.tokens["r"]], 2)


# ---- nothing to generate ---------------------------------------------------------------------------


@pytest.mark.case("C8")
@pytest.mark.parametrize("length", [1, 4, 17, 40])
@pytest.mark.parametrize("num_top", [None, 1])
def test_a_prompt_alone_is_scored_and_nothing_generated(length: int, num_top: int | None) -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("r", prompt(1, length), max_tokens=0, n=2, prompt_logprobs=num_top)
    engine.run()
    assert engine.ended == {("r", 0): FinishReason.LENGTH, ("r", 1): FinishReason.LENGTH}
    assert engine.finished == {"r": FinishReason.LENGTH}
    assert engine.tokens["r"] == []
    expected = {} if num_top is None else {"r": expected_scores(prompt(1, length), num_top)}
    assert engine.prompt_logprobs == expected
    engine.assert_idle()


def test_such_a_prompt_may_fill_the_window() -> None:
    engine = SmallEngine(max_model_len=20)
    engine.add("whole", prompt(1, 20), max_tokens=0, prompt_logprobs=0)
    engine.add("longer", prompt(1, 21), max_tokens=0, prompt_logprobs=0)
    engine.add("beams", prompt(1, 5), max_tokens=0, n=1, beam=BeamParams(2))
    engine.run()
    assert engine.errors.keys() == {"longer", "beams"}
    assert engine.prompt_logprobs["whole"] == expected_scores(prompt(1, 20), 0)


@pytest.mark.parametrize("unwanted", [0, 1])
def test_an_aborted_sample_of_such_a_prompt_is_not_told(unwanted: int) -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("r", prompt(1, 40), max_tokens=0, n=2, prompt_logprobs=0)
    engine.step()
    engine.core.abort("r", unwanted)
    engine.run()
    assert engine.ended.keys() == {("r", 1 - unwanted)}
    assert engine.prompt_logprobs["r"] == expected_scores(prompt(1, 40), 0)


# ---- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_logits_that_are_not_finite_in_mid_prompt_cost_only_that_request(max_tokens: int) -> None:
    engine = SmallEngine(num_blocks=32, max_num_batched_tokens=32)
    engine.executor.broken.add("bad")
    engine.add("good", prompt(2, 20), max_tokens=3, prompt_logprobs=0)
    engine.add("bad", prompt(1, 40), max_tokens=max_tokens, prompt_logprobs=0)
    engine.step()
    assert "not finite" in engine.errors["bad"]
    engine.run()
    assert engine.tokens["good"] == expected_tokens(prompt(2, 20), 3)
    engine.executor.broken.clear()
    engine.add("again", prompt(1, 40), max_tokens=3)
    engine.run()
    assert engine.cached["again"] == 0, "nobody may share what it computed"
    engine.assert_idle()


def test_a_position_that_was_skipped_is_noticed() -> None:
    scoring = PromptScoring(prompt(1, 9), 0)
    with pytest.raises(AssertionError, match="skipped"):
        scoring.ask(4, 8)
    with pytest.raises(AssertionError):
        scoring.whole()
