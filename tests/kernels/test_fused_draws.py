"""Draws in the interpreter: who is drawn, what is kept, and on what neither may depend."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fused_draws import (
    BLOCK,
    Setting,
    assert_draws,
    bits_of,
    chi_square,
    expected_draws,
    exponentials,
    is_near_edge,
    kept_tokens,
    kernel_exponentials,
    kernel_keeps,
    key_of,
    sampler_keeps,
    tokens,
    weights_of,
)

EXAMPLES = 400 if os.environ.get("TIDEGATE_SLOW") else 12
DRAWS = 1_000 if os.environ.get("TIDEGATE_SLOW") else 10
FILTERS: dict[str, Setting] = {
    "plain": Setting(),
    "greedy": Setting(temperature=0.0, top_k=3),
    "cold": Setting(temperature=0.3),
    "hot": Setting(temperature=2.0),
    "top_k": Setting(top_k=3),
    "top_k 1": Setting(top_k=1),
    "top_k beyond the vocabulary": Setting(top_k=10_000_000),
    "top_p": Setting(top_p=0.6),
    "tiny top_p": Setting(top_p=1e-9),
    "min_p": Setting(min_p=0.2),
    "min_p all": Setting(min_p=1.0),
    "top_k, top_p": Setting(temperature=0.7, top_k=20, top_p=0.8),
    "all": Setting(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02),
}


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """New tensors hold NaN and the largest integers until they are written."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * scale


def varied(setting: Setting, count: int, first: int = 0) -> list[Setting]:
    """The same with other seeds and positions, the largest seed among them."""
    return [
        Setting(
            setting.temperature, setting.top_k, setting.top_p, setting.min_p,
            seed=(i * 7 if i % 3 else 2**64 - 1 - i), position=i * 13,
        )
        for i in range(first, first + count)
    ]  # fmt: skip


# ---- noise -----------------------------------------------------------------------------------------


def test_noise_is_what_it_is_defined_to_be() -> None:
    """Among it the smallest of a million numbers, which a plain logarithm would lose."""
    small = min(range(1000), key=lambda seed: int(bits_of(key_of(seed, 0), BLOCK).min()))
    keys = [key_of(small, 0), key_of(2**64 - 1, 2**31 - 1), 0, 2**64 - 1]
    expected = np.stack([exponentials(key, BLOCK) for key in keys])
    assert expected.min() < 2e-5
    np.testing.assert_allclose(kernel_exponentials(keys).numpy(), expected, rtol=2e-6)


def test_noise_is_exponential_and_independent_between_keys_and_tokens() -> None:
    numbers = np.stack([exponentials(key_of(seed, seed % 7), 2000) for seed in range(200)])
    shares, _ = np.histogram(np.exp(-numbers), bins=50, range=(0, 1))
    assert abs(chi_square(shares.astype(np.float64), np.full(50, 1 / 50))) < 4
    for one, other in ((numbers[:, :-1], numbers[:, 1:]), (numbers[:-1], numbers[1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.01


# ---- draws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vocab", [40, 5000])
def test_draws_are_the_expected_ones(name: str, vocab: int) -> None:
    rows = 6 if vocab < 1000 else 2
    assert_draws(random_logits(rows, vocab), varied(FILTERS[name], rows))


@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 129, 4095, 4096, 4097, 8193])
def test_vocabularies_around_the_edges_of_tiles(vocab: int) -> None:
    """The likeliest token being the last, where a wrong mask would lose it."""
    logits = random_logits(4, vocab)
    logits[:, -1] = 30.0
    kinds = [Setting(temperature=0.0), Setting(), Setting(top_p=0.9), Setting(top_k=2)]
    assert tokens(logits, kinds) == [vocab - 1] * 4
    assert_draws(random_logits(4, vocab, seed=1), kinds)


@pytest.mark.parametrize("name", ["plain", "top_k", "top_p", "min_p", "top_k, top_p"])
def test_draws_follow_the_distribution(name: str) -> None:
    """Those of the device are the expected ones, of which there can be as many as it takes."""
    setting, logits = FILTERS[name], random_logits(1, 12, seed=4, scale=1.0)
    weights = weights_of(logits[0], setting) * kept_tokens(logits[0], setting)
    drawn = expected_draws(logits[0], setting, [key_of(seed, seed % 1000) for seed in range(10_000)])
    counts = np.bincount(drawn, minlength=12).astype(np.float64)
    assert chi_square(counts, weights / weights.sum()) < 4
    assert_draws(logits.expand(DRAWS, -1).contiguous(), varied(setting, DRAWS), most_unsure=DRAWS // 10)


# ---- what is kept ----------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, derandomize=True)
@given(st.data())
def test_what_is_kept_is_what_a_sort_keeps(data: st.DataObject) -> None:
    """Coarse logits too, of which many are equal; and as much as the sampler on the host keeps."""
    draw = data.draw
    vocab = draw(st.sampled_from([2, 3, 40, 700, 4095, 4096, 4097, 8193]))
    scale, step = draw(st.sampled_from([0.1, 1.0, 4.0])), draw(st.sampled_from([0, 0, 0.25, 2.0]))
    logits = random_logits(4, vocab, seed=draw(st.integers(0, 1000)), scale=scale)
    logits = (logits / step).round() * step if step else logits
    kinds = [
        Setting(
            temperature=draw(st.sampled_from([0.5, 1.0, 1.5])),
            top_k=draw(st.sampled_from([0, 1, 2, 13, vocab - 1, vocab])),
            top_p=draw(st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01])),
            min_p=draw(st.sampled_from([0.0, 0.0, 0.03, 0.6])),
        )
        for _ in range(4)
    ]
    for row, kind, kept in zip(logits, kinds, kernel_keeps(logits, kinds), strict=True):
        if not is_near_edge(row, kind):
            np.testing.assert_array_equal(kept, kept_tokens(row, kind), err_msg=str(kind))
            host = sampler_keeps(row, kind)
            assert sorted(row[kept].tolist()) == sorted(row[host].tolist()), kind


def test_of_equal_tokens_the_first_are_kept() -> None:
    logits = torch.zeros(4, 9000)
    logits[1:, 5000:] = 1.0
    kinds = [Setting(top_k=8500), Setting(top_k=3500), Setting(top_p=0.25), Setting(top_k=3500, top_p=0.5)]
    whole = math.e * 4000 + 5000
    counts = [(0, 8500), (5000, 8500), (5000, 5000 + math.ceil(0.25 * whole / math.e)), (5000, 6750)]
    for kept, (first, last) in zip(kernel_keeps(logits, kinds), counts, strict=True):
        assert abs(len(kept.nonzero()[0]) - (last - first)) <= 1
        np.testing.assert_array_equal(kept.nonzero()[0], np.arange(first, first + int(kept.sum())))


def test_logits_of_any_size_end_the_search() -> None:
    """From the smallest that float32 has to those whose distance it cannot tell."""
    for scale in (1e-44, 1e-38, 1e-20, 1e20):
        logits = random_logits(3, 50, scale=scale)
        found = tokens(logits, [Setting(top_k=3), Setting(top_p=0.5), Setting(top_k=9, top_p=0.3)])
        assert all(0 <= token < 50 for token in found)


# ---- on what a draw may not depend -----------------------------------------------------------------


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    kinds = [varied(FILTERS[name], 1, first=len(name))[0] for name in FILTERS]
    logits = random_logits(len(kinds), 300, scale=1.0)
    together = tokens(logits, kinds)
    order = random.Random(1).sample(range(len(kinds)), len(kinds))
    assert tokens(logits[order], [kinds[row] for row in order]) == [together[row] for row in order]
    for row in range(0, len(kinds), 3):
        assert tokens(logits[row : row + 1], kinds[row : row + 1]) == [together[row]]


def test_seed_and_position_both_matter() -> None:
    logits = random_logits(1, 40, scale=0.1).expand(20, -1).contiguous()
    by_position = tokens(logits, [Setting(position=i) for i in range(20)])
    by_seed = tokens(logits, [Setting(seed=i) for i in range(20)])
    assert len(set(by_position)) > 10
    assert len(set(by_seed)) > 10
    assert by_position != by_seed
    assert len(set(tokens(logits[:4], [Setting()] * 4))) == 1


# ---- edges -----------------------------------------------------------------------------------------


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    logits = torch.zeros(2, 9000)
    logits[1, [4097, 8999]] = 4.0
    assert tokens(logits, [Setting(temperature=0.0)] * 2) == [0, 4097]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-50])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_temperature_near_zero_is_greedy(temperature: float, filtered: bool) -> None:
    logits = random_logits(6, 5000)
    kinds = [Setting(temperature, top_p=0.9 if filtered else 1.0, position=i) for i in range(6)]
    assert tokens(logits, kinds) == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("name", ["greedy", "plain", "top_p", "all"])
def test_rows_that_are_not_finite_fail_alone(name: str) -> None:
    """Whatever is in them, and wherever: in one slice, in the last token, everywhere."""
    kinds, logits = varied(FILTERS[name], 9), random_logits(9, 4200)
    sound = tokens(logits[:1], kinds[:1]) + tokens(logits[4:5], kinds[4:5])
    bad = [math.nan, math.inf, -math.inf]
    for row, (value, places) in enumerate(zip(bad, ([17], [4199], [4100]), strict=True)):
        logits[1 + row, places] = value
        logits[5 + row] = value
    found = tokens(logits, kinds)
    assert [found[0], found[4]] == sound
    assert found[1:4] == found[5:8] == [-1] * 3
    assert found[8] >= 0


def test_no_rows_are_no_trouble() -> None:
    assert tokens(torch.empty(0, 40), []) == []
