"""The batched sampler against one written row by row in plain Python, and its independence claims."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.execution import sampler
from engine.execution.random_numbers import uniform
from engine.execution.sampler import sample
from engine.messages import SamplingParams
from engine.schedule import SampleSpec

VOCAB = 40


def spec(
    position: int = 5,
    prompt: Sequence[int] = (1, 2),
    output: Sequence[int] = (3,),
    banned: Sequence[int] = (),
    **params: object,
) -> SampleSpec:
    fields = {"max_tokens": 10, "seed": 0, **params}
    made = SamplingParams(**fields)  # type: ignore[arg-type]
    return SampleSpec(made, (made.seed,), position, prompt, output, banned)


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * scale


def tokens(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[int | None]:
    return [drawn[0].token_id if drawn else None for drawn in sample(logits, specs)]


def number(spec: SampleSpec) -> float:
    return float(uniform(np.array([spec.params.seed], np.uint64), np.array([spec.position], np.uint64))[0])


# ---- the same, one row at a time, in the documented order ------------------------------------------


def plain_logits(row: Sequence[float], spec: SampleSpec) -> list[float]:
    params, scores = spec.params, list(row)
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    for token in spec.banned_token_ids:
        scores[token] = -math.inf
    for token in {*spec.prompt_token_ids, *spec.output_token_ids}:
        up = scores[token] > 0
        scores[token] *= 1 / params.repetition_penalty if up else params.repetition_penalty
    for token in set(spec.output_token_ids):
        scores[token] -= params.frequency_penalty * list(spec.output_token_ids).count(token)
        scores[token] -= params.presence_penalty
    return scores


def plain_probabilities(row: Sequence[float], spec: SampleSpec) -> list[float]:
    params, scores = spec.params, plain_logits(row, spec)
    top = max(scores)
    weights = [math.exp((score - top) / params.temperature) for score in scores]
    weights = [weight if weight >= params.min_p * max(weights) else 0.0 for weight in weights]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    kept = order[: params.top_k or None]
    whole, running, chosen = sum(weights[token] for token in kept), 0.0, set()
    for token in kept:
        if running < params.top_p * whole or not chosen:
            chosen.add(token)
        running += weights[token]
    left = [weight if token in chosen else 0.0 for token, weight in enumerate(weights)]
    return [weight / sum(left) for weight in left]


def near_edge(probabilities: Sequence[float], target: float) -> bool:
    sums = np.cumsum(probabilities)
    return bool(np.min(np.abs(sums - target)) < 1e-5)


def assert_matches(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> int:
    """Every row's draw is the plain one's; returns how many rows were too close to an edge to say."""
    skipped = 0
    for row, spec, token in zip(logits.tolist(), specs, tokens(logits, specs), strict=True):
        if spec.params.temperature == 0:
            scores = plain_logits(row, spec)
            assert token == scores.index(max(scores))
            continue
        probabilities = plain_probabilities(row, spec)
        assert token is not None
        if near_edge(probabilities, number(spec)):
            skipped += 1
            continue
        assert token == int(np.searchsorted(np.cumsum(probabilities), number(spec), side="right"))
    return skipped


FEATURES: dict[str, dict[str, object]] = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 2.0},
    "bias": {"logit_bias": {0: 5.0, 7: -100.0, 39: 1.5}},
    "banned": {"banned": (0, 1, 2, 38, 39)},
    "repetition": {"repetition_penalty": 1.7, "output": (5, 5, 9)},
    "repetition below one": {"repetition_penalty": 0.5},
    "presence": {"presence_penalty": 1.5, "output": (5, 5, 9)},
    "frequency": {"frequency_penalty": 0.7, "output": (5, 5, 5, 9)},
    "negative penalties": {"frequency_penalty": -0.7, "presence_penalty": -1.0, "output": (5, 5, 9)},
    "min_p": {"min_p": 0.2},
    "min_p all": {"min_p": 1.0},
    "top_k": {"top_k": 3},
    "top_k 1": {"top_k": 1},
    "top_k beyond the vocabulary": {"top_k": 10_000},
    "top_p": {"top_p": 0.6},
    "tiny top_p": {"top_p": 1e-9},
    "all": {
        "temperature": 0.8, "min_p": 0.02, "top_k": 12, "top_p": 0.8, "repetition_penalty": 1.2,
        "presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {3: 2.0, 4: -2.0}, "banned": (6,),
        "output": (3, 3, 8),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_alone(name: str) -> None:
    rows = 60
    specs = [spec(position=i, seed=i * 7, **FEATURES[name]) for i in range(rows)]  # type: ignore[arg-type]
    assert assert_matches(random_logits(rows), specs) <= 2


def test_all_features_side_by_side_with_greedy_rows() -> None:
    kinds = [*FEATURES.values(), {"temperature": 0.0}, {"temperature": 0.0, "presence_penalty": 2.0}]
    specs = [spec(position=i, seed=3, **kinds[i % len(kinds)]) for i in range(80)]  # type: ignore[arg-type]
    assert assert_matches(random_logits(80, seed=5), specs) <= 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_combination(data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, VOCAB - 1), max_size=6)
    draw = data.draw
    specs = [
        spec(
            position=draw(st.integers(0, 1000)),
            seed=draw(st.integers(0, 2**64 - 1)),
            prompt=draw(ids),
            output=draw(ids),
            banned=draw(st.lists(st.integers(0, VOCAB - 1), max_size=VOCAB - 1, unique=True)),
            temperature=draw(st.sampled_from([0.0, 0.2, 1.0, 1.9])),
            top_k=draw(st.sampled_from([0, 1, 2, 13, VOCAB])),
            top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
            min_p=draw(st.sampled_from([0.0, 0.05, 0.5])),
            repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
            presence_penalty=draw(st.sampled_from([0.0, 1.1])),
            frequency_penalty=draw(st.sampled_from([0.0, -0.4])),
            logit_bias=draw(st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=3)),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]
    assert_matches(random_logits(len(specs), seed=draw(st.integers(0, 50))), specs)


# ---- the nucleus beyond the prefix -----------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.9}, {"top_k": 511}, {"top_k": 512}, {"top_k": 513}, {"top_k": 700, "top_p": 0.5},
        {"top_k": 512, "top_p": 0.5}, {"top_k": 100, "top_p": 0.99}, {"top_p": 0.3, "min_p": 0.05},
        {"top_k": 1500}, {"top_k": 2000, "top_p": 0.9999}, {"top_k": 600, "top_p": 0.35},
    ],
    ids=str,
)  # fmt: skip
def test_a_nucleus_larger_than_the_prefix_that_is_tried_first(params: dict[str, object]) -> None:
    """Flat rows, whose nucleus is most of 1500 tokens, beside peaked ones. Kept sets are compared."""
    logits = torch.cat([random_logits(4, 1500, scale=0.2), random_logits(4, 1500, scale=4.0)])
    specs = [spec(**params) for _ in range(8)]  # type: ignore[arg-type]
    ours = sampler._without_unlikely(torch.softmax(logits, dim=1), specs)
    for row, mine in zip(logits.tolist(), ours, strict=True):
        expected = np.array(plain_probabilities(row, specs[0]))
        kept, wanted = set(mine.nonzero()[:, 0].tolist()), set(np.flatnonzero(expected).tolist())
        assert len(kept ^ wanted) <= 1, "more than a rounding at the edge"
        np.testing.assert_allclose((mine / mine.sum()).numpy(), expected, atol=2e-3)


def test_top_p_of_one_keeps_all_of_top_k() -> None:
    """However small the tail is beside the first."""
    logits = torch.full((1, 600), -40.0)
    logits[0, 0] = 0.0
    kept = sampler._without_unlikely(torch.softmax(logits, dim=1), [spec(top_k=100, min_p=0.0)])
    assert int((kept > 0).sum()) == 100


# ---- independence ----------------------------------------------------------------------------------


def many_kinds(rows: int) -> list[SampleSpec]:
    kinds = [*FEATURES.values(), {"temperature": 0.0}, {"temperature": 1.5, "logprobs": 2}]
    return [spec(position=i * 3, seed=1000 + i, **kinds[i % len(kinds)]) for i in range(rows)]  # type: ignore[arg-type]


@pytest.mark.parametrize("vocab", [VOCAB, 3000])
def test_a_draw_does_not_depend_on_its_neighbours(vocab: int) -> None:
    specs, logits = many_kinds(40), random_logits(40, vocab, scale=1.0)
    together = sample(logits, specs)
    order = random.Random(1).sample(range(40), 40)
    permuted = sample(logits[order], [specs[row] for row in order])
    assert permuted == [together[row] for row in order]
    for row in range(40):
        assert sample(logits[row : row + 1], specs[row : row + 1]) == [together[row]]


def test_seed_and_position_both_matter() -> None:
    logits = random_logits(1, scale=0.1).expand(200, -1).contiguous()
    by_position = tokens(logits, [spec(position=i) for i in range(200)])
    by_seed = tokens(logits, [spec(seed=i) for i in range(200)])
    assert len(set(by_position)) > 30
    assert len(set(by_seed)) > 30
    assert by_position != by_seed
    assert len(set(tokens(logits, [spec()] * 200))) == 1


# ---- distribution ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 4, "temperature": 1.5}], ids=str
)
def test_draws_follow_the_distribution(params: dict[str, object]) -> None:
    draws, logits = 6000, random_logits(1, 12, seed=4, scale=1.0)
    specs = [spec(position=i, prompt=(), output=(), **params) for i in range(draws)]  # type: ignore[arg-type]
    expected = np.array(plain_probabilities(logits[0].tolist(), specs[0])) * draws
    found = tokens(logits.expand(draws, -1).contiguous(), specs)
    counts = np.bincount(np.array(found, dtype=np.int64), minlength=12)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = float((((counts - expected) ** 2)[possible] / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


# ---- edges -----------------------------------------------------------------------------------------


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, [9, 30]] = 4.0
    assert tokens(logits, [spec(temperature=0.0)] * 2) == [0, 9]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-50, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logits = random_logits(20)
    specs = [spec(position=i, temperature=temperature) for i in range(20)]
    assert tokens(logits, specs) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("top_p", [1e-9, 1e-46, 5e-324])
@pytest.mark.parametrize("vocab", [VOCAB, 2000])
def test_a_top_p_near_zero_is_greedy(top_p: float, vocab: int) -> None:
    logits = random_logits(20, vocab)
    specs = [spec(position=i, top_p=top_p) for i in range(20)]
    assert tokens(logits, specs) == logits.argmax(dim=1).tolist()


def test_bias_of_a_hundred_forces_and_forbids() -> None:
    logits = random_logits(30)
    forced = [spec(position=i, logit_bias={17: 100.0}) for i in range(30)]
    assert tokens(logits, forced) == [17] * 30
    best = [int(token) for token in logits.argmax(dim=1)]
    forbidden = [spec(position=i, temperature=0.1, logit_bias={best[i]: -100.0}) for i in range(30)]
    assert all(token != banned for token, banned in zip(tokens(logits, forbidden), best, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 2.0])
def test_all_but_one_banned(temperature: float) -> None:
    banned = [token for token in range(VOCAB) if token != 23]
    specs = [
        spec(position=i, temperature=temperature, banned=banned, top_p=top_p, repetition_penalty=1.5)
        for i, top_p in enumerate((1.0, 0.5, 1e-9))
    ]
    assert tokens(random_logits(3), specs) == [23] * 3


def test_a_penalty_never_brings_a_banned_token_back() -> None:
    specs = [spec(position=i, banned=(3,), repetition_penalty=0.1, frequency_penalty=-2.0) for i in range(50)]
    assert 3 not in tokens(random_logits(50), specs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"min_p": 0.1, "top_k": 3}, {"presence_penalty": 1.0}],
    ids=str,
)
def test_one_row_that_is_not_finite_fails_alone(value: float, params: dict[str, object]) -> None:
    specs = [spec(position=i, logprobs=3, **params) for i in range(3)]  # type: ignore[arg-type]
    logits = random_logits(3)
    sound = sample(logits, specs)
    for places in ([5], list(range(VOCAB))):
        broken = logits.clone()
        broken[1, places] = value
        assert sample(broken, specs) == [sound[0], (), sound[2]]


def test_uniform_number_just_below_one_stays_inside_the_vocabulary() -> None:
    probabilities = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1e-30, 0.0, 0.0]])
    assert sampler._inverse_cdf(probabilities, np.full(3, 1 - 2**-53)) == [1, 2, 0]
    assert sampler._inverse_cdf(probabilities, np.zeros(3)) == [0, 2, 0]


# ---- log probabilities -----------------------------------------------------------------------------


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(5)
    special = {"temperature": 0.5, "presence_penalty": 2.0, "logit_bias": {4: 50.0}, "top_k": 2}
    specs = [
        spec(logprobs=None),
        spec(logprobs=0),
        spec(logprobs=3, **special),
        spec(logprobs=20, temperature=0.0),
        spec(logprobs=1000),
    ]
    before = logits.clone()
    results = sample(logits, specs)
    assert torch.equal(logits, before), "the caller's logits were changed"
    expected = torch.log_softmax(logits.double(), dim=1)
    assert results[0][0].logprobs is None
    for row, count in ((1, 0), (2, 3), (3, 20), (4, VOCAB)):
        ((token, logprobs),) = [(drawn.token_id, drawn.logprobs) for drawn in results[row]]
        assert logprobs is not None
        assert logprobs.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        best = expected[row].topk(count)
        assert [token for token, _ in logprobs.top] == best.indices.tolist()
        assert [value for _, value in logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_a_row_that_asks_for_nothing_special_costs_no_copy() -> None:
    logits = random_logits(3)
    plain = [spec(temperature=0.0), spec(temperature=0.7, top_p=0.9, min_p=0.1, top_k=5), spec(logprobs=3)]
    assert sampler._adjusted(logits, plain, [None] * 3) is logits
    for extra in ({"logit_bias": {1: 1.0}}, {"banned": (1,)}, {"presence_penalty": 0.1}):
        before = logits.clone()
        adjusted = sampler._adjusted(logits, [*plain[:2], spec(**extra)], [None] * 3)  # type: ignore[arg-type]
        assert adjusted is not logits
        assert torch.equal(logits, before)
        assert torch.equal(adjusted[:2], logits[:2])


# ---- several tokens a row --------------------------------------------------------------------------


def test_a_row_with_several_seeds_draws_what_rows_of_their_own_would() -> None:
    logits = random_logits(3)
    wide = replace(spec(temperature=1.2, top_p=0.9, logprobs=2), seeds=(4, 5, 6))
    others = [spec(temperature=0.0), spec(temperature=0.8, seed=9)]
    together = sample(logits, [others[0], wide, others[1]])
    alone = [sample(logits[1:2], [replace(wide, seeds=(seed,))])[0][0] for seed in wide.seeds]
    assert list(together[1]) == alone
    assert len({drawn.token_id for drawn in alone}) > 1
    assert [together[0], together[2]] == [
        sample(logits[r : r + 1], [o])[0] for r, o in zip((0, 2), others, strict=True)
    ]


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_candidates_are_the_likeliest_after_what_changes_log_probabilities(logprobs: int | None) -> None:
    logits = random_logits(2)
    asked = replace(
        spec(
            logit_bias={7: 3.0},
            repetition_penalty=1.3,
            presence_penalty=0.5,
            banned=(1, 2),
            output=(3, 3, 9),
            logprobs=logprobs,
        ),
        seeds=(),
        num_candidates=6,
    )
    drawn, ranked = sample(logits, [spec(temperature=0.0), asked])
    assert len(drawn) == 1
    normalized = torch.log_softmax(logits[1], dim=0).tolist()
    scores = plain_logits(normalized, asked)
    best = sorted(range(VOCAB), key=lambda token: -scores[token])[:6]
    assert [candidate.token_id for candidate in ranked] == best
    assert [candidate.log_probability for candidate in ranked] == pytest.approx(
        [scores[t] for t in best], abs=1e-5
    )
    for candidate in ranked:
        if logprobs is None:
            assert candidate.logprobs is None
        else:
            assert candidate.logprobs is not None
            assert candidate.logprobs.logprob == pytest.approx(normalized[candidate.token_id], abs=1e-5)
            assert len(candidate.logprobs.top) == logprobs


def test_a_broken_row_has_no_candidates() -> None:
    logits = random_logits(2)
    logits[0, 3] = math.nan
    asked = [replace(spec(), seeds=(), num_candidates=4)] * 2
    assert [len(tokens) for tokens in sample(logits, asked)] == [0, 4]


def test_there_are_no_more_candidates_than_tokens() -> None:
    (ranked,) = sample(
        random_logits(1, vocab=5), [replace(spec(prompt=(), output=()), seeds=(), num_candidates=9)]
    )
    assert sorted(candidate.token_id for candidate in ranked) == list(range(5))


def test_candidates_reach_as_far_as_it_takes_to_have_enough_that_do_not_end() -> None:
    logits = torch.arange(VOCAB, dtype=torch.float32).flip(0)[None].clone()
    asked = replace(spec(prompt=(), output=()), seeds=(), num_candidates=3, ends=frozenset({0, 2, 3, 30}))
    (ranked,) = sample(logits, [asked])
    assert [candidate.token_id for candidate in ranked] == [0, 1, 2, 4, 5]


# ---- masks of grammars -----------------------------------------------------------------------------


def mask_of(*allowed: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(VOCAB, dtype=np.bool_)
    mask[list(allowed)] = True
    return mask


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0}, {"temperature": 2.0}, {"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.5},
        {"repetition_penalty": 2.0}, {"logit_bias": {9: 100.0}},
    ],
)  # fmt: skip
def test_only_what_the_mask_allows_can_come(params: dict[str, Any]) -> None:
    specs = [spec(seed=seed, output=(5, 5), **params) for seed in range(64)]
    masks = [mask_of(5, 17) if seed % 2 else mask_of(30) for seed in range(64)]
    drawn = [found[0].token_id for found in sample(random_logits(64, scale=20.0), specs, masks)]
    assert all(masks[row][token] for row, token in enumerate(drawn))
    if params == {"temperature": 2.0}:
        assert {5, 17, 30} == set(drawn)


def test_rows_without_a_mask_are_as_if_there_were_none() -> None:
    logits = random_logits(6)
    specs = [spec(seed=seed, logprobs=2) for seed in range(6)]
    masks = [mask_of(1, 2) if row in (1, 4) else None for row in range(6)]
    plain, masked = sample(logits, specs), sample(logits, specs, masks)
    assert [masked[row] for row in (0, 2, 3, 5)] == [plain[row] for row in (0, 2, 3, 5)]
    assert sample(logits, specs, [None] * 6) == plain


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    logits = random_logits(1)
    (found,) = sample(logits, [spec(logprobs=3, temperature=0.0)], [mask_of(7)])
    raw = torch.log_softmax(logits, dim=1)[0]
    assert found[0].token_id == 7
    assert found[0].logprobs is not None
    assert found[0].logprobs.logprob == pytest.approx(float(raw[7]))
    assert found[0].logprobs.top[0][0] == int(raw.argmax())


def test_several_seeds_of_a_row_share_its_mask() -> None:
    asked = replace(spec(temperature=2.0), seeds=tuple(range(40)))
    (found,) = sample(random_logits(1), [asked], [mask_of(3, 4)])
    assert {token.token_id for token in found} == {3, 4}


def test_bans_hold_unless_the_grammar_allows_nothing_else() -> None:
    logits = random_logits(2)
    specs = [spec(banned=(2, 3, 3), temperature=0.0)] * 2
    found = sample(logits, specs, [mask_of(2, 3, 4), mask_of(2)])
    assert [tokens[0].token_id for tokens in found] == [4, 2]
