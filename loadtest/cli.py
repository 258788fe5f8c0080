"""The ``tideload`` command. Imports nothing heavy."""

from __future__ import annotations

from importlib import metadata

import click

from loadtest.commands.compare import compare_command
from loadtest.commands.run import run_command
from loadtest.commands.serve_and_run import serve_and_run_command
from loadtest.commands.sharing import sharing_command
from loadtest.commands.sweep import sweep_command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(metadata.version("tidegate"), prog_name="tideload")
def main() -> None:
    """Measure a server under load, and what its memory is used for."""


for command in (run_command, sweep_command, compare_command, serve_and_run_command, sharing_command):
    main.add_command(command)


if __name__ == "__main__":
    main()
