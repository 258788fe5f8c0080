"""The ``tideload`` command. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Any

import click

from loadtest.commands.compare import compare_command
from loadtest.commands.run import run_command
from loadtest.commands.serve_and_run import serve_and_run_command
from loadtest.commands.sharing import sharing_command
from loadtest.commands.sweep import sweep_command
from loadtest.describe import EXIT_INTERRUPTED


class _Commands(click.Group):
    """Ctrl-C ends a command with one exit code, however far it has come; click would have it be 1."""

    def invoke(self, ctx: click.Context) -> Any:
        _fill_standard_streams()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("tideload: Interrupted.", err=True)
            sys.exit(EXIT_INTERRUPTED)


def _fill_standard_streams() -> None:
    """Whoever starts a command may have closed some; a socket in their place would end uvloop, and us."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(metadata.version("tidegate"), prog_name="tideload")
def main() -> None:
    """Measure a server under load, and what its memory is used for."""


for command in (run_command, sweep_command, compare_command, serve_and_run_command, sharing_command):
    main.add_command(command)


if __name__ == "__main__":
    main()
