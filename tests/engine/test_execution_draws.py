"""Which rows get logits and which tokens the device draws."""

from __future__ import annotations

import pytest

from engine.execution.draws import Asked, is_plain, of_every_row, of_rows_that_ask
from engine.messages import Grammar, SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput, ScoreSpec


def spec(*seeds: int, banned: tuple[int, ...] = (), candidates: int = 0, **params: object) -> SampleSpec:
    made = SamplingParams(**{"max_tokens": 5, "seed": 0, **params})  # type: ignore[arg-type]
    return SampleSpec(made, seeds, 7, (1, 2), (3,), banned, candidates)


def chunk(
    name: str, num_rows: int, sample: SampleSpec | None, score: ScoreSpec | None = None
) -> ScheduledChunk:
    return ScheduledChunk(name, (5,) * num_rows, 0, (1, 2), sample, score)


@pytest.mark.parametrize(
    "special",
    [
        spec(1, logprobs=0),
        spec(1, logit_bias={3: 1.0}),
        spec(1, repetition_penalty=1.1),
        spec(1, presence_penalty=0.1),
        spec(1, frequency_penalty=-0.1),
        spec(1, grammar=Grammar("regex", "a")),
        spec(1, banned=(2,)),
        spec(candidates=4),
    ],
    ids=str,
)
def test_what_the_device_cannot_do_is_not_asked_of_it(special: SampleSpec) -> None:
    assert not is_plain(special)
    plan = SchedulerOutput((chunk("a", 1, special), chunk("b", 1, spec(9))))
    for wanted in (of_rows_that_ask(plan), of_every_row(plan, 4)):
        assert wanted is not None
        first, second = wanted.asked
        assert not first.draws and [wanted.draws.seeds[at] for at in second.draws] == [9]
        assert (first.row, second.row) == (0, 1)


def test_temperature_and_filters_are_plain() -> None:
    assert is_plain(spec(1, temperature=0.3, top_k=5, top_p=0.9, min_p=0.1, min_tokens=3, ignore_eos=True))


def test_logits_of_rows_that_ask_only() -> None:
    plan = SchedulerOutput(
        (chunk("a", 3, spec(1, 2, temperature=0.5)), chunk("b", 4, None), chunk("c", 1, spec(3, top_k=2**40)))
    )
    wanted = of_rows_that_ask(plan)
    a, _, c = plan.chunks
    assert list(wanted.asked) == [Asked(a, 0, range(2)), Asked(c, 1, range(2, 3))]
    assert wanted.logit_rows == [2, 7]
    assert (wanted.draws.rows, wanted.draws.seeds) == ([0, 0, 1], [1, 2, 3])
    assert (wanted.draws.temperatures, wanted.draws.positions) == ([0.5, 0.5, 1.0], [7, 7, 7])
    assert wanted.draws.top_ks == [0, 0, 2**31 - 1]


def test_a_draw_of_every_row_for_a_graph() -> None:
    plan = SchedulerOutput(
        (
            chunk("a", 1, None),
            chunk("b", 1, spec(3, min_p=0.5, temperature=0.7)),
            chunk("c", 1, spec(4, logprobs=1)),
        )
    )
    wanted = of_every_row(plan, 8)
    assert wanted is not None and not wanted.logit_rows
    _, b, c = plan.chunks
    assert list(wanted.asked) == [Asked(b, 1, range(1, 2)), Asked(c, 2, range(0))]
    assert wanted.draws.rows == list(range(8))
    assert wanted.draws.seeds == [0, 3, *[0] * 6]
    assert wanted.draws.temperatures == [0, 0.7, *[0] * 6]
    assert wanted.draws.min_ps == [0, 0.5, *[0] * 6]


@pytest.mark.parametrize(
    "other",
    [
        chunk("b", 2, None),
        chunk("b", 1, spec(1, 2)),
        chunk("b", 1, spec(1), ScoreSpec(0, (3,), 2)),
    ],
    ids=["rows", "seeds", "scores"],
)
def test_what_no_graph_computes(other: ScheduledChunk) -> None:
    assert of_every_row(SchedulerOutput((chunk("a", 1, spec(1)), other)), 4) is None
