"""Tenants take turns at the compiler, whatever each of them has queued."""

from __future__ import annotations

from engine.grammar_line import GrammarLine
from engine.grammar_room import Form
from engine.messages import Grammar


def form(name: str) -> Form:
    return Form(Grammar("regex", name))


def taken(line: GrammarLine) -> str:
    names = ""
    while line:
        names += line.take().grammar.text
    return names


def line_of(**tenants: str) -> GrammarLine:
    line = GrammarLine()
    for tenant, names in tenants.items():
        for name in names:
            line.add(form(name), tenant)
    return line


def test_one_tenants_go_first_come_first() -> None:
    assert taken(line_of(one="cab")) == "cab"


def test_tenants_take_turns() -> None:
    assert taken(line_of(many="abcdef", few="xy", single="z")) == "axzbycdef"


def test_one_that_comes_late_waits_for_one_of_each_other_tenant() -> None:
    line = line_of(one="abcd", other="wxyz")
    assert [line.take().grammar.text for _ in range(3)] == ["a", "w", "b"]
    line.add(form("late"), "third")
    assert [line.take().grammar.text for _ in range(3)] == ["x", "c", "late"]


def test_what_several_wait_for_is_taken_once_at_the_first_turn() -> None:
    line = line_of(one="abc", other="c")
    assert form("c") in line
    assert taken(line) == "acb"
    assert form("c") not in line


def test_what_is_removed_is_not_taken() -> None:
    line = line_of(one="ab", other="b")
    line.remove(form("b"))
    line.remove(form("never there"))
    assert form("b") not in line
    assert taken(line) == "a"
    assert not line
