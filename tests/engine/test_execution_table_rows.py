"""What the device is told of block tables, against a device that keeps just what it is told."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from engine.execution.table_rows import TableRows

WIDTH = 12


class Device:
    """Tables as told; entries that were never told are None."""

    def __init__(self, num_rows: int) -> None:
        self.tables: list[list[int | None]] = [[None] * WIDTH for _ in range(num_rows)]
        self.num_told = 0

    def step(self, rows: TableRows, tables: dict[str, Sequence[int]]) -> None:
        """A step of these sequences, after which each finds its table in its row."""
        taken: dict[int, str] = {}
        for name, table in tables.items():
            change = rows.place(name, table)
            assert change.row not in taken, f"{name} has the row of {taken[change.row]}"
            taken[change.row] = name
            self.tables[change.row][change.first : change.first + len(change.blocks)] = change.blocks
            self.num_told += len(change.blocks)
            assert change.first + len(change.blocks) == len(table)
        for row, name in taken.items():
            assert self.tables[row][: len(tables[name])] == list(tables[name])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_becomes_of_tables_between_steps(data: st.DataObject) -> None:
    """Entries exchanged in place, tables grown, cut, or made anew under an old name, rows taken away."""
    num_rows = data.draw(st.integers(2, 4))
    rows, device = TableRows(num_rows, WIDTH), Device(num_rows)
    names = [f"s{index}" for index in range(2 * num_rows)]
    block = st.integers(0, 300)
    tables = {name: data.draw(st.lists(block, min_size=1, max_size=WIDTH)) for name in names}
    for _ in range(data.draw(st.integers(1, 8))):
        for name in data.draw(st.lists(st.sampled_from(names), unique=True)):
            table = tables[name]
            match data.draw(st.sampled_from(["exchange", "grow", "cut", "renew"])):
                case "exchange":
                    table[data.draw(st.integers(0, len(table) - 1))] = data.draw(block)
                case "grow":
                    table += data.draw(st.lists(block, max_size=WIDTH - len(table)))
                case "cut":
                    del table[data.draw(st.integers(1, len(table))) :]
                case "renew":
                    tables[name] = data.draw(st.lists(block, min_size=1, max_size=WIDTH))
        running = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=num_rows))
        device.step(rows, {name: tables[name] for name in running})


def test_only_what_has_changed_is_told() -> None:
    rows, device = TableRows(4, WIDTH), Device(4)
    tables = {name: [index, index + 10, index + 20] for index, name in enumerate("abc")}
    device.step(rows, tables)
    assert device.num_told == 9
    device.step(rows, tables)
    assert device.num_told == 9
    tables["b"].append(300)
    device.step(rows, tables)
    assert device.num_told == 10
    tables["c"][1] = 301  # what follows is told again
    device.step(rows, tables)
    assert device.num_told == 12


def test_a_sequence_that_sits_out_keeps_its_row_while_there_are_others() -> None:
    rows, device = TableRows(3, WIDTH), Device(3)
    tables = {name: [index] for index, name in enumerate("abcd")}
    for names in ("abc", "ac", "ab", "abc"):
        device.step(rows, {name: tables[name] for name in names})
    assert device.num_told == 3
    device.step(rows, {name: tables[name] for name in "abd"})  # c was used last, but only a and b are needed
    device.step(rows, {name: tables[name] for name in "abd"})
    assert device.num_told == 4


def test_a_table_longer_than_a_row() -> None:
    rows = TableRows(2, WIDTH)
    with pytest.raises(AssertionError):
        rows.place("a", list(range(WIDTH + 1)))
