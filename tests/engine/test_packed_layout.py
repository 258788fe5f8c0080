"""Quantized matrices keep their values, whatever order they are put in."""

from __future__ import annotations

import numpy as np
import pytest

from engine.packed.layout import (
    GROUP,
    LANES,
    PANELS,
    TILE,
    QuantizedMatrix,
    empty_tiles,
    input_of,
    interleaved,
    pack_into,
    stacked,
)  # fmt: skip
from tests.support.packed_matrices import random_matrix


def unpacked(tiles: np.ndarray, matrix: QuantizedMatrix) -> np.ndarray:
    """The values of one packed matrix, read as the layout's docstring says."""
    groups, bits = matrix.num_inputs // GROUP, matrix.bits
    found = np.zeros((tiles.shape[0] * TILE, matrix.num_inputs), np.float32)
    for tile, by_group in enumerate(tiles.reshape(tiles.shape[0], groups, -1)):
        for group, run in enumerate(by_group):
            words = run[: PANELS * bits * LANES * 4].view(np.uint32).reshape(PANELS, bits, LANES)
            halves = run[PANELS * bits * LANES * 4 :].view(np.float16).reshape(2, PANELS, LANES)
            scales, minima = halves.astype(np.float32)
            for panel, word, lane in np.ndindex(PANELS, bits, LANES):
                output = tile * TILE + panel * LANES + lane
                for place in range(GROUP // bits):
                    q = int(words[panel, word, lane]) >> (bits * place) & (2**bits - 1)
                    value = scales[panel, lane] * np.float32(q) + minima[panel, lane]
                    found[output, group * GROUP + input_of(bits, word, place)] = value
    return found


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_outputs", [1, TILE, TILE + 1])
def test_packing_keeps_every_value_and_fills_up_with_zeros(bits: int, num_outputs: int) -> None:
    matrix = random_matrix(bits, num_outputs, 2 * GROUP)
    tiles = empty_tiles(2, matrix)
    tiles[...] = 0xFF
    pack_into(tiles[1], matrix)
    found = unpacked(tiles[1], matrix)
    np.testing.assert_array_equal(found[:num_outputs], matrix.values())
    assert not found[num_outputs:].any()
    assert (tiles[0] == 0xFF).all()
    assert tiles.ctypes.data % 64 == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_each_input_of_a_group_has_one_place(bits: int) -> None:
    places = [input_of(bits, word, place) for word in range(bits) for place in range(GROUP // bits)]
    assert sorted(places) == list(range(GROUP))


def test_stacked_outputs_follow_one_another() -> None:
    first, second = random_matrix(4, 3, GROUP, seed=1), random_matrix(4, 5, GROUP, seed=2)
    expected = np.concatenate([first.values(), second.values()])
    np.testing.assert_array_equal(stacked([first, second]).values(), expected)


@pytest.mark.parametrize("num_outputs", [LANES, 40])
def test_gates_and_ups_come_in_panels_in_turn(num_outputs: int) -> None:
    gate, up = random_matrix(8, num_outputs, GROUP, seed=1), random_matrix(8, num_outputs, GROUP, seed=2)
    panels = interleaved(gate, up).values().reshape(-1, 2, LANES, GROUP)
    for half, matrix in enumerate((gate, up)):
        found = panels[:, half].reshape(-1, GROUP)[:num_outputs]
        np.testing.assert_array_equal(found, matrix.values())
