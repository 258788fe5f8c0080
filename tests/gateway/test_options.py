"""Options as they are read from text: sizes and times of what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gateway.options import state_options, state_settings
from gateway.responses.records import StateSettings


def settings_of(*arguments: str) -> StateSettings:
    found: list[StateSettings] = []

    @click.command()
    @state_options
    def command(**options: Any) -> None:
        found.append(state_settings(options))
        assert options == {}

    outcome = CliRunner().invoke(command, arguments)
    assert outcome.exit_code == 0, outcome.output
    return found[0]


def test_the_defaults_of_the_command_line_are_those_of_the_settings() -> None:
    assert settings_of() == StateSettings()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_times(text: str, seconds: float) -> None:
    assert settings_of("--state-ttl", text).ttl_s == seconds


def test_a_file_and_its_size() -> None:
    settings = settings_of("--state", "some/file", "--state-size", "2MiB")
    assert (settings.path, settings.max_bytes) == (Path("some/file"), 2 * 2**20)


@pytest.mark.parametrize(
    "arguments",
    [("--state-ttl", text) for text in ("0", "-1", "3w", "1e9", "", "99999999999d")]
    + [("--state-size", text) for text in ("10%", "0", "1KiB", "many")]
    + [("--state", "/")],
)
def test_what_cannot_be_meant_is_refused(arguments: tuple[str, str]) -> None:
    command = click.command()(state_options(lambda **options: None))
    outcome = CliRunner().invoke(command, arguments)
    assert outcome.exit_code == 2
    assert arguments[0] in outcome.output
