"""Prices learned from synthetic steps and copies, against the machine that made them up."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.cost_model import CostModel
from tiering.types import TransferKind

BLOCK_SIZE = 16
BLOCK_BYTES = 1_000_000


def pairs_of(start: int, stop: int) -> int:
    return sum(range(start + 1, stop + 1))


@dataclass(frozen=True)
class Machine:
    """Seconds that a made-up machine takes; each step is off by about ``noise`` of its time."""

    fixed: float = 8e-3
    per_token: float = 1.2e-4
    per_pair: float = 3e-8
    noise: float = 0.05

    def slower(self, factor: float) -> Machine:
        return Machine(self.fixed * factor, self.per_token * factor, self.per_pair * factor, self.noise)

    def prefill_s(self, start: int, stop: int) -> float:
        return self.per_token * (stop - start) + self.per_pair * pairs_of(start, stop)

    def run(self, model: CostModel, num_steps: int, seed: int) -> None:
        """Steps of all sizes, at all depths of a history."""
        rng = random.Random(seed)
        for _ in range(num_steps):
            start, num_tokens = rng.randrange(8000), rng.randint(16, 512)
            self.step(model, start, start + num_tokens, rng)

    def step(self, model: CostModel, start: int, stop: int, rng: random.Random) -> None:
        seconds = (self.fixed + self.prefill_s(start, stop)) * max(0.5, rng.gauss(1, self.noise))
        model.observe_step(stop - start, pairs_of(start, stop), seconds)


def new_model() -> CostModel:
    return CostModel(BLOCK_SIZE, BLOCK_BYTES)


def assert_priced_like(model: CostModel, machine: Machine, tolerance: float) -> None:
    for start, stop in [(0, 512), (0, 4000), (2000, 2512), (7000, 7512)]:
        assert model.prefill_s(start, stop) == pytest.approx(machine.prefill_s(start, stop), rel=tolerance)


# ---- computing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_noisy_machine_is_priced_right(seed: int) -> None:
    model, machine = new_model(), Machine()
    machine.run(model, 400, seed)
    assert_priced_like(model, machine, 0.1)
    assert model.step_s() == pytest.approx(machine.fixed, rel=0.25)


def test_without_noise_the_coefficients_are_found() -> None:
    model, machine = new_model(), Machine(noise=0.0)
    machine.run(model, 100, seed=0)
    assert_priced_like(model, machine, 1e-4)
    assert model.step_s() == pytest.approx(machine.fixed, rel=1e-4)


def test_a_machine_that_gets_slower_is_followed() -> None:
    model, machine = new_model(), Machine()
    machine.run(model, 400, seed=0)
    machine.slower(3).run(model, 400, seed=1)
    assert_priced_like(model, machine.slower(3), 0.15)
    machine.run(model, 400, seed=2)
    assert_priced_like(model, machine, 0.15)


def test_a_single_step_gives_a_first_idea() -> None:
    model, machine = new_model(), Machine(noise=0.0)
    machine.step(model, 0, 512, random.Random(0))
    priced = model.prefill_s(0, 512)
    assert priced is not None
    assert 0 < priced <= machine.fixed + machine.prefill_s(0, 512)


def test_many_equal_steps_spoil_nothing() -> None:
    for seed in range(3):
        model, machine, rng = new_model(), Machine(), random.Random(seed)
        for _ in range(2000):
            machine.step(model, 0, 512, rng)
        machine.run(model, 20, seed=9 + seed)
        assert_priced_like(model, machine, 0.1)


def test_nothing_is_priced_before_it_was_seen() -> None:
    model = new_model()
    assert model.prefill_s(0, 100) is None
    assert model.block_s(3) == 0.0
    assert model.step_s() == 0.0
    for kind in TransferKind:
        assert model.copy_s(kind, 1) is None
        assert model.bandwidth(kind) is None


def test_steps_that_only_decode_are_ignored() -> None:
    model, machine = new_model(), Machine()
    for num_tokens in range(1, 16):
        model.observe_step(num_tokens, 100_000, 0.5)
    assert model.prefill_s(0, 100) is None
    machine.run(model, 100, seed=0)
    before = model.prefill_s(0, 512)
    for _ in range(1000):
        model.observe_step(8, 8 * 4000, 0.02)
    assert model.prefill_s(0, 512) == before


def test_steps_without_a_duration_are_ignored() -> None:
    model = new_model()
    model.observe_step(512, 1000, 0.0)
    model.observe_step(512, 1000, -1.0)
    assert model.prefill_s(0, 100) is None


def test_a_block_costs_what_its_positions_cost_and_more_the_deeper_it_is() -> None:
    model = new_model()
    Machine().run(model, 200, seed=0)
    for depth in (0, 7, 300):
        assert model.block_s(depth) == model.prefill_s(depth * BLOCK_SIZE, (depth + 1) * BLOCK_SIZE)
    assert model.block_s(0) < model.block_s(100) < model.block_s(300)


@given(st.lists(st.integers(0, 5000), min_size=3, max_size=3).map(sorted))
def test_chunks_cost_together_what_the_whole_costs(cuts: list[int]) -> None:
    model = new_model()
    Machine(noise=0.0).run(model, 50, seed=0)
    start, middle, stop = cuts
    first, second = model.prefill_s(start, middle), model.prefill_s(middle, stop)
    assert first is not None and second is not None
    assert first + second == pytest.approx(model.prefill_s(start, stop), rel=1e-6, abs=1e-12)


SECONDS = st.floats(1e-9, 1e6)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**12), SECONDS), max_size=40),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_prices_are_finite_and_not_negative_whatever_was_measured(
    steps: list[tuple[int, int, float]], start: int, num_tokens: int
) -> None:
    model = new_model()
    for num_step_tokens, num_pairs, seconds in steps:
        model.observe_step(num_step_tokens, num_pairs, seconds)
    prefill_s = model.prefill_s(start, start + num_tokens)
    assert (prefill_s is None) == all(tokens < 16 for tokens, _, _ in steps)
    for price in (prefill_s or 0.0, model.block_s(start), model.step_s()):
        assert math.isfinite(price)
        assert price >= 0


# ---- copying -------------------------------------------------------------------------------------


def test_the_first_copy_is_believed_and_later_ones_are_averaged() -> None:
    model = new_model()
    model.observe_copy(TransferKind.SWAP_IN, 0.001)
    assert model.copy_s(TransferKind.SWAP_IN, 1) == 0.001
    model.observe_copy(TransferKind.SWAP_IN, 0.101)
    one_outlier = model.copy_s(TransferKind.SWAP_IN, 1)
    assert one_outlier is not None
    assert 0.001 < one_outlier < 0.02
    for _ in range(200):
        model.observe_copy(TransferKind.SWAP_IN, 0.004)
    assert model.copy_s(TransferKind.SWAP_IN, 1) == pytest.approx(0.004, rel=0.01)


def test_each_direction_has_its_own_average() -> None:
    model = new_model()
    for factor, kind in enumerate(TransferKind, start=1):
        model.observe_copy(kind, 0.001 * factor)
    for factor, kind in enumerate(TransferKind, start=1):
        assert model.copy_s(kind, 10) == pytest.approx(0.01 * factor)
        assert model.bandwidth(kind) == pytest.approx(BLOCK_BYTES / (0.001 * factor))


def test_no_copies_take_no_time_even_if_nothing_was_measured() -> None:
    assert new_model().copy_s(TransferKind.PROMOTE, 0) == 0.0


def test_copies_teach_nothing_of_computing() -> None:
    model = new_model()
    model.observe_copy(TransferKind.DEMOTE, 0.001)
    assert model.prefill_s(0, 100) is None
    assert model.copy_s(TransferKind.PROMOTE, 1) is None


def test_a_copy_too_quick_for_the_clock_has_no_bandwidth() -> None:
    model = new_model()
    model.observe_copy(TransferKind.SWAP_OUT, 0.0)
    assert model.copy_s(TransferKind.SWAP_OUT, 5) == 0.0
    assert model.bandwidth(TransferKind.SWAP_OUT) is None


@given(st.lists(SECONDS, min_size=1, max_size=40))
def test_an_average_lies_between_what_it_averages(copies: list[float]) -> None:
    model = new_model()
    for seconds in copies:
        model.observe_copy(TransferKind.DEMOTE, seconds)
    per_block, bandwidth = model.copy_s(TransferKind.DEMOTE, 1), model.bandwidth(TransferKind.DEMOTE)
    assert per_block is not None and bandwidth is not None
    assert min(copies) * (1 - 1e-9) <= per_block <= max(copies) * (1 + 1e-9)
    assert math.isfinite(bandwidth)
    assert bandwidth > 0
