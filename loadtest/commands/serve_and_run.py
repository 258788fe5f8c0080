"""``tideload serve-and-run``: a server of its own for one run."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from loadtest.commands.options import (
    DEFAULT_URL,
    MORE_THAN_0,
    OutputFile,
    load_options,
    measuring_options,
    output_options,
    repeats_option,
    target_options_but_url,
    workload_options,
)


@click.command("serve-and-run")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--base-url",
    default="",
    metavar="URL",
    help="Where the server will listen.  [default: at the port put in for {port}]",
)
@click.option(
    "--server-log",
    type=OutputFile(),
    metavar="FILE",
    help="What the server prints goes here.  [default: a temporary file, which is named]",
)
@click.option(
    "--start-timeout",
    "start_timeout_s",
    type=MORE_THAN_0,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="What it may take to get ready.",
)
@target_options_but_url
@load_options
@workload_options
@repeats_option(default=3)
@measuring_options
@output_options
def serve_and_run_command(command: tuple[str, ...], **options: Any) -> None:
    """Start a server, measure it as run does, and end it.

    COMMAND is the server's, with {port} where its port belongs:

        tideload serve-and-run --rate 2 -- tidegate serve --port {port}

    It is ready when it answers at /health and /v1/models; nothing else may answer there before. It ends with
    SIGTERM, and what is left of it after 30 s, or of what it started, is killed. Exit codes are those of run,
    and 3 if the server ended by itself.
    """
    from loadtest.commands.run import run_of
    from loadtest.commands.running import carry_out, hand_over, leaving_with_a_sentence
    from loadtest.commands.settings import take_output, take_target
    from loadtest.measuring.server_process import Launch, ServerProcessError, serving

    log: Path = options.pop("server_log") or _temporary_log()
    base_url, start_timeout_s = options.pop("base_url"), options.pop("start_timeout_s")
    output, target = take_output(options), take_target(options, base_url or DEFAULT_URL)
    asked = run_of(options, target)
    try:
        launch = Launch(command, log, base_url, start_timeout_s)
    except ServerProcessError as error:
        raise click.UsageError(str(error)) from None
    with leaving_with_a_sentence():
        click.echo(f"tideload: starting {command[0]}, whose log is {log}", err=True)
        with serving(launch) as server:
            found = carry_out(asked(replace(target, base_url=server.base_url)))
            if (status := server.exit_status) is not None:
                found = found.of_a_server_that_ended(
                    f"The server ended by itself, with status {status}; its log is {log}."
                )
            hand_over(found.report, output)  # the end of a server takes its time, and can be broken off
    sys.exit(found.status)


def _temporary_log() -> Path:
    with tempfile.NamedTemporaryFile(prefix="tideload-server-", suffix=".log", delete=False) as log:
        return Path(log.name)
