"""What the check of a GPU needs of a plain image is told before it begins."""

from __future__ import annotations

import pytest

from benchmarks.gpu_check import command, packages


def test_what_is_not_installed_is_told_at_once() -> None:
    assert packages.missing() == [], "it asks for what tests do without"
    without = packages.missing(lambda name: None if name in ("xxhash", "pytest_timeout") else name)
    assert without == ["xxhash", "pytest-timeout"] and packages.can_begin(without)
    assert "what needs it fails (pip install --no-deps xxhash pytest-timeout" in packages.told(without)
    assert not packages.can_begin(["msgspec"])
    assert "the check cannot begin" in packages.told(["msgspec"])


@pytest.mark.parametrize(("version", "is_told"), [("1.26.4", False), ("2.3.5", False), ("2.4.0rc1", True)])
def test_a_dry_run_says_where_kernels_cannot_be_interpreted(
    version: str, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    command._tell_of_numpy(version)
    assert (f"here is {version}, so they will fail" in capsys.readouterr().err) is is_told
