"""The core that makes tokens up: its pace, its groups, its words, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.config import ConfigError, EngineScript, parse_engine
from engine.messages import AddRequest, FinishReason, ForkRequest, SamplingParams
from engine.messages import Branch as ForkBranch
from engine.scripted_core import ScriptedCore
from engine.scripted_words import TICKS_PER_S, Words

WORDS = Words.of({"Ġone": 5, "Ġtwo": 3, "three": 1, "Ġ4": 2, "▁five": 9, "Ġ": 4})


class Clock:
    """Time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def core_of(clock: Clock, rate: float = 10.0, phases: int = 1, max_num_seqs: int = 8) -> ScriptedCore:
    script = EngineScript(rate, phases)
    return ScriptedCore(script, WORDS, max_num_seqs=max_num_seqs, num_blocks=100, clock=clock)


def add(core: ScriptedCore, *names: str, max_tokens: int = 3, prompt: Sequence[int] = (0,)) -> None:
    for name in names:
        sampling = SamplingParams(max_tokens=max_tokens, seed=0)
        core.add(AddRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling))


def told(core: ScriptedCore) -> list[str]:
    report = core.step()
    return [] if report is None else [delta.request_id for delta in report.deltas]


def test_words_are_tokens_with_a_space_and_letters() -> None:
    assert list(zip(WORDS.token_ids, WORDS.texts, strict=True)) == [(3, " two"), (5, " one"), (9, " five")]
    with pytest.raises(ValueError, match="no token that is a word"):
        Words.of({"one": 1})


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_a_word_tells_when_it_was_emitted(offset: int) -> None:
    for tick in range(1000, 1010):
        token_id = WORDS.token_id(tick / TICKS_PER_S + 1e-6, offset)
        index = list(WORDS.token_ids).index(token_id)
        assert WORDS.age_s(index, offset, (tick + 2) / TICKS_PER_S + 1e-6) == pytest.approx(2 / TICKS_PER_S)


def test_all_that_runs_gets_a_token_each_time_until_its_end() -> None:
    clock = Clock()
    core = core_of(clock)
    add(core, "a", max_tokens=2)
    add(core, "b", max_tokens=3)
    assert told(core) == ["a", "b"]
    assert core.step() is None
    assert not core.can_step()
    assert core.patience_s == pytest.approx(0.1)
    clock.now = 0.1
    report = core.step()
    assert report is not None
    assert [(delta.finish_reason, delta.ends_request) for delta in report.deltas] == [
        (FinishReason.LENGTH, True),
        (None, False),
    ]
    clock.now = 0.2
    assert told(core) == ["b"]
    assert core.patience_s is None
    assert core.stats().generated_tokens_total == 5


def test_groups_take_turns() -> None:
    clock = Clock()
    core = core_of(clock, phases=2)
    add(core, "a", "b", "c")
    assert told(core) == ["a", "c"]
    clock.now = 0.05
    assert told(core) == ["b"]
    clock.now = 0.1
    assert told(core) == ["a", "c"]


def test_a_step_that_is_late_is_not_made_up_for() -> None:
    clock = Clock()
    core = core_of(clock)
    add(core, "a", max_tokens=9)
    assert told(core) == ["a"]
    clock.now = 5.0
    assert told(core) == ["a"]
    assert told(core) == ["a"], "the next one is due at once, for it was too late already"
    assert told(core) == []


def test_who_finds_no_place_waits_for_one() -> None:
    clock = Clock()
    core = core_of(clock, max_num_seqs=1)
    add(core, "a", "b", max_tokens=1)
    assert (core.stats().num_running, core.stats().num_waiting) == (1, 1)
    assert told(core) == ["a"]
    clock.now = 0.1
    assert told(core) == ["b"]


def test_aborted_and_paused_ones_get_nothing() -> None:
    clock = Clock()
    core = core_of(clock)
    add(core, "a", "b", "c")
    core.abort("a")
    core.abort("unknown")
    core.pause("b")
    assert told(core) == ["c"]
    core.resume("b")
    core.abort("c", 0)
    clock.now = 0.1
    report = core.step()
    assert report is not None
    assert [(delta.request_id, delta.ends_request) for delta in report.deltas] == [("c", True), ("b", False)]


def test_what_asks_for_more_than_tokens_is_refused() -> None:
    clock = Clock()
    core = core_of(clock)
    for sampling in (
        SamplingParams(max_tokens=1, seed=0, n=2),
        SamplingParams(max_tokens=1, seed=0, logprobs=1),
        SamplingParams(max_tokens=0, seed=0),
    ):
        core.add(AddRequest(request_id="a", prompt_token_ids=(1,), sampling=sampling))
    branch = ForkBranch(request_id="a", sampling=SamplingParams(max_tokens=1, seed=0))
    core.fork(ForkRequest(request_id="b", branches=(branch,)))
    report = core.step()
    assert report is not None
    assert [(delta.finish_reason, delta.is_invalid) for delta in report.deltas] == [
        (FinishReason.ERROR, True)
    ] * 4


def test_the_engine_option() -> None:
    assert parse_engine("model") is None
    assert parse_engine("scripted:20") == EngineScript(20.0, 1)
    assert parse_engine("scripted:0.5/32") == EngineScript(0.5, 32)


@pytest.mark.parametrize("text", ["", "scripted", "scripted:", "scripted:0", "scripted:-1", "scripted:1/0"])
def test_what_is_no_engine_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no engine"):
        parse_engine(text)
