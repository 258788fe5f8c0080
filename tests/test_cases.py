"""The register of cases: faults that other servers shipped, sections A to E and G, each with a test of ours.

A test says which row it holds with ``@pytest.mark.case("A1")``. Tests that only ``make test-slow`` or a GPU
runs hold nothing; those that run ``alone`` do, since ``make`` runs them after the others. Rows that speak of
sessions are held by plain HTTP (E6 by a conversation whose client leaves, E7 by resets in every state of an
event stream, E9 by conversations without end) and by WebSocket.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
SECTIONS = {
    "A": (1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13),
    "B": (1, 3, 4, 5, 6, 7, 8, 10, 11, 12),
    "C": (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19),
    "D": (1, 2, 3, 4, 7, 8),
    "E": (1, 2, 4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16),
    "G": (1, 2, 4, 5, 7),
}
CASES = {f"{section}{number}" for section, numbers in SECTIONS.items() for number in numbers}
NOT_ALWAYS_RUN = {"slow", "gpu", "skip", "skipif", "xfail"}


def marks(node: ast.AST) -> set[str]:
    """Names of the marks in a decorator."""
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "pytest.mark"
    }


def case_ids(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "pytest.mark.case":
            (argument,) = part.args
            assert isinstance(argument, ast.Constant), "a case is named by a literal"
            yield argument.value


def held() -> dict[str, list[str]]:
    """Tests by the case that they hold."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        everywhere = [node for node in tree.body if isinstance(node, ast.Assign)]
        for test in tree.body:
            if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            around = [*test.decorator_list, *_tables_used(test, everywhere)]
            if any(marks(node) & NOT_ALWAYS_RUN for node in test.decorator_list):
                continue
            for case in {case for node in around for case in case_ids(node)}:
                assert test.name.startswith("test_"), f"{path}: {test.name} holds {case} and is no test"
                found[case].append(f"{path.relative_to(TESTS)}::{test.name}")
    return found


def _tables_used(test: ast.FunctionDef | ast.AsyncFunctionDef, tables: list[ast.Assign]) -> list[ast.expr]:
    """Tables of parameters, which carry marks of their own."""
    names = {node.id for mark in test.decorator_list for node in ast.walk(mark) if isinstance(node, ast.Name)}
    return [table.value for table in tables if any(ast.unparse(target) in names for target in table.targets)]


def test_every_case_has_a_test() -> None:
    assert CASES - held().keys() == set()


def test_make_runs_both_what_is_alone_and_what_is_not() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    assert [f"-m '$(1){which}'" in makefile for which in ("not alone", "alone")] == [True, True]


def test_no_test_names_a_case_that_is_not_there() -> None:
    assert held().keys() - CASES == set()
