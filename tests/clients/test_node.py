"""The official openai client for node: its suite is in ``js/``, this runs it against the live server.

Without node and npm it is skipped, but not where TIDEGATE_CI or CI is set: there it fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import KEY, MODEL, PLACES
from tests.support.server import Server

SUITE = Path(__file__).parent / "js"
IN_CI = bool(os.environ.get("TIDEGATE_CI") or os.environ.get("CI"))
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def installed() -> None:
    """The client in ``node_modules``, exactly as the lock file says."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        if IN_CI:
            pytest.fail("node and npm are not installed; the client suite for node needs them")
        pytest.skip("NOT RUN: the client suite for node; install node and npm to run it")
    if not _is_installed():
        _run("npm", "ci")


def _is_installed() -> bool:
    record = SUITE / "node_modules" / ".package-lock.json"
    return record.exists() and record.stat().st_mtime >= (SUITE / "package-lock.json").stat().st_mtime


def _run(*command: str, **env: str) -> str:
    result = subprocess.run(
        command, cwd=SUITE, env=os.environ | env, capture_output=True, text=True, timeout=500, check=False
    )
    assert result.returncode == 0, f"{' '.join(command)}:\n{result.stdout[-8000:]}\n{result.stderr[-4000:]}"
    return result.stdout


@pytest.mark.usefixtures("installed")
def test_the_node_client_passes_its_suite(server: Server) -> None:
    output = _run(
        "node",
        "--test",
        "--test-reporter=tap",
        TIDEGATE_URL=server.url,
        TIDEGATE_KEY=KEY,
        TIDEGATE_MODEL=MODEL,
        TIDEGATE_PLACES=str(PLACES),
    )
    passed = re.search(r"^# pass (\d+)$", output, re.MULTILINE)
    assert passed and int(passed[1]) >= 20, output[-4000:]
    assert "# fail 0" in output and "# skipped 0" in output


def test_the_lock_file_names_no_host() -> None:
    assert '"resolved"' not in (SUITE / "package-lock.json").read_text()
