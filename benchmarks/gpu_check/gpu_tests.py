"""The tests that are marked ``gpu``, in one pytest of their own, several processes of it if it can.

Only files that have such a test are collected: a machine that measures need not have what all other tests
import. One that cannot be imported is told as a test that failed, and costs no other. Warnings fail no test
here, since versions are those of the machine, and of its plugins only those that tests need are loaded. Tests
are told as they end, so those that ended in time count, whatever becomes of the others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.tested import PATH_VARIABLE, Phase, by_name, read

_ROOT = Path(__file__).parents[2]
_MARKED = re.compile(r"pytest\.mark\.gpu\b")
_NUM_PROCESSES = 8  # which compile kernels side by side
_TO_TELL_S = 5.0
_MOST_TOLD = 12
_NO_TESTS_RAN = 5  # pytest's exit code


def measure(context: Context) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tested.jsonl"
        variables = {**os.environ, PATH_VARIABLE: str(path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        variables.pop("TRITON_INTERPRET", None)
        command = [sys.executable, "-m", "pytest", *_options(context), *marked_files(_ROOT)]
        status = _run(command, variables, context.left_s - _TO_TELL_S)
        _tell(context, by_name(read(path)), status)


def _options(context: Context) -> list[str]:
    options = ["-m", "gpu", "-q", "-W", "default", "--continue-on-collection-errors"]
    for plugin in ("pytest_asyncio.plugin", "pytest_timeout", "benchmarks.gpu_check.tested"):
        options += ["-p", plugin]
    if context.on_gpu and find_spec("xdist") is not None:
        options += ["-p", "xdist.plugin", "-n", str(_NUM_PROCESSES), "--dist", "worksteal"]
    return options


def _run(command: Sequence[str], variables: dict[str, str], budget_s: float) -> int | None:
    """The exit status; None if it was not done in time."""
    with subprocess.Popen(command, cwd=_ROOT, env=variables) as process:
        try:
            return process.wait(budget_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return None


def marked_files(root: Path) -> list[str]:
    """Of the tests, those with one that needs a GPU: what is in the folder ``gpu``, and what has the mark."""
    files = sorted((root / "tests").rglob("test_*.py"))
    found = [path for path in files if path.parent.name == "gpu" or _MARKED.search(path.read_text())]
    return [str(path.relative_to(root)) for path in found]


def _tell(context: Context, tested: Sequence[Phase], status: int | None) -> None:
    """How many passed of those that ran. Skipped ones are not among them; where there is no GPU all are."""
    skipped = [test for test in tested if test.outcome == "skipped"]
    failed = [test for test in tested if test.outcome == "failed"]
    ran = len(tested) - len(skipped)
    context.tell(
        "tests that passed", ran - len(failed), "tests", beside="tests that ran", limit=ran, target=1.0
    )
    context.tell("tests that were skipped", len(skipped), "tests")
    for test in failed[:_MOST_TOLD]:
        context.tell_failure(test.name, test.reason)
    if len(failed) > _MOST_TOLD:
        context.tell_failure("more tests", f"{len(failed) - _MOST_TOLD} more failed; the log says which")
    if status is None:
        context.tell_failure("all tests", f"not done in time; {ran} ran")
    elif status not in (0, _NO_TESTS_RAN) and not failed:
        context.tell_failure("all tests", f"pytest ended with exit code {status}; the log says why")
    elif context.on_gpu and ran == 0:
        context.tell_failure("all tests", "none ran, though there is a GPU; the log says why")
