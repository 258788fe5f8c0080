"""How the check of a GPU runs the tests that are marked ``gpu``: none of them may be lost unseen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check import gpu_tests
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import Failure, Figure, Line
from benchmarks.gpu_check.parts import Settings
from benchmarks.gpu_check.tested import Phase

ROOT = Path(__file__).parent.parent


@pytest.fixture
def told() -> list[Line]:
    return []


@pytest.fixture
def context(told: list[Line]) -> Context:
    return Context(Settings(device="cpu", scale="dry run", deadline=time.monotonic() + 60), told.append)


@pytest.mark.parametrize("processes", ["one", "several"])
def test_a_file_that_cannot_be_imported_costs_no_other_test(
    context: Context, told: list[Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    folder = tmp_path / "tests" / "gpu"
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    (folder / "test_a.py").write_text("import none_such\n")
    (folder / "test_b.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_b():\n    pass\n")
    monkeypatch.setattr(gpu_tests, "_ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if processes == "several":
        options = [*gpu_tests._options(context), "-p", "xdist.plugin", "-n", "2", "--dist", "worksteal"]
        monkeypatch.setattr(gpu_tests, "_options", lambda _: options)
    gpu_tests.measure(context)
    passed = told[0]
    assert isinstance(passed, Figure) and (passed.value, passed.limit) == (1, 2)
    assert told[2:] == [
        Failure(name="tests/gpu/test_a.py", reason="ModuleNotFoundError: No module named 'none_such'")
    ]


def test_no_test_at_all_is_a_failure_where_there_is_a_gpu(context: Context, told: list[Line]) -> None:
    skipped = [Phase("a", "skipped")]
    gpu_tests._tell(context, skipped, 0)
    assert not context.has_failed
    on_gpu: Any = context
    on_gpu.device = type("Device", (), {"type": "cuda"})
    gpu_tests._tell(on_gpu, skipped, 0)
    assert told[-1] == Failure(name="all tests", reason="none ran, though there is a GPU; the log says why")


def test_failures_that_are_not_told_one_by_one_are_counted(context: Context, told: list[Line]) -> None:
    failed = [Phase(str(number), "failed", "no") for number in range(15)]
    gpu_tests._tell(context, failed, 1)
    assert told[-1] == Failure(name="more tests", reason="3 more failed; the log says which")
    assert len(told) == 2 + 12 + 1
