"""The ``tidegate`` command: serve, chat, doctor, keys. Imports nothing heavy; the engine is a process."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from engine.config import ConfigError
from gateway import thoughts
from gateway.connection_limits import ConnectionLimits
from gateway.cors import parse_origin
from gateway.doctor import run_doctor
from gateway.keys_command import keys_command
from gateway.lifecycle import DEFAULT_ENGINE_RESTARTS, EXIT_USER_ERROR, run_server
from gateway.options import (
    SHARE,
    FiniteFloat,
    engine_config,
    engine_kind_option,
    engine_options,
    state_options,
    state_settings,
    tls_files,
    tls_options,
    websocket_limits,
    websocket_options,
)
from gateway.state import GatewaySettings, package_version
from gateway.terminal_chat import ChatError, Server, own_server, run_chat
from gateway.tools.registry import FAMILIES

_DEFAULTS = GatewaySettings()
_LIMITS = _DEFAULTS.connection_limits
_SECONDS = FiniteFloat(min=0, min_open=True)
_LOG_LEVELS = ("debug", "info", "warning", "error")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_version(), prog_name="tidegate")
def main() -> None:
    """Stream tokens from a paged LLM engine over an OpenAI-compatible API.

    MODEL is a Hugging Face directory (safetensors), a .gguf file, or left out for the built-in
    SmolLM2-135M-Instruct.
    """


@main.command("serve")
@engine_options
@engine_kind_option
@click.option("--host", default=_DEFAULTS.host, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.port,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--api-key",
    multiple=True,
    envvar="TIDEGATE_API_KEY",
    help="Key that clients must send; may be given more than once. Better set as TIDEGATE_API_KEY, which `ps`"
    " does not show.  [default: none needed]",
)
@click.option(
    "--keys-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TIDEGATE_KEYS_FILE",
    help="TOML or JSON file of tenants, hashed keys and limits (docs/tenants.md); read again on SIGHUP.",
)
@click.option(
    "--admin-key",
    envvar="TIDEGATE_ADMIN_KEY",
    help="Key for /debug/*; better set as TIDEGATE_ADMIN_KEY.  [default: those paths are off]",
)
@state_options
@websocket_options
@tls_options
@click.option(
    "--cors-origin",
    "cors_origins",
    callback=lambda context, parameter, values: _origins(values),
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin (https://chat.example, or * for all) read answers; may be given more"
    " than once.  [default: none]",
)
@click.option(
    "--web/--no-web",
    default=_DEFAULTS.web,
    show_default=True,
    help="Serve the chat page at / and its tide map (docs/web.md).",
)
@click.option(
    "--served-model-name",
    multiple=True,
    help="Name that clients use; may be given more than once.  [default: the model's]",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=0),
    default=_DEFAULTS.max_waiting,
    show_default=True,
    help="Requests that may wait beyond --max-num-seqs (one for n answers counts n times); more get 429.",
)
@click.option(
    "--max-waiting-tokens",
    type=click.IntRange(min=0),
    default=_DEFAULTS.max_waiting_tokens,
    show_default=True,
    help="Tokens, prompts and answers, that requests in the house may take beyond the KV pool; more get 429.",
)
@click.option(
    "--kv-quota",
    type=SHARE,
    default=f"{_DEFAULTS.kv_quota:.0%}",
    show_default=True,
    help="Share of each KV tier that one tenant may keep by asking for it (docs/tenants.md).",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=_LIMITS.max_connections,
    show_default=True,
    help="Connections that may be open at a time; more get 503.",
)
@click.option(
    "--header-timeout",
    type=_SECONDS,
    default=_LIMITS.head_timeout_s,
    show_default=True,
    help="Seconds that a request's headers may take to arrive.",
)
@click.option(
    "--keepalive-timeout",
    type=_SECONDS,
    default=_LIMITS.idle_timeout_s,
    show_default=True,
    help="Seconds that a connection may be idle between two requests.",
)
@click.option(
    "--drain-timeout",
    type=FiniteFloat(min=0),
    default=_DEFAULTS.drain_timeout_s,
    show_default=True,
    help="Seconds that running answers get to finish after SIGTERM.",
)
@click.option(
    "--stall-timeout",
    type=_SECONDS,
    default=60.0,
    show_default=True,
    help="Seconds without a step, while work is pending, after which /health answers 503.",
)
@click.option(
    "--engine-restarts",
    type=click.IntRange(min=0),
    default=DEFAULT_ENGINE_RESTARTS,
    show_default=True,
    help="Deaths of the engine within 10 minutes after which another is started; one more ends the server.",
)
@click.option(
    "--tool-call-parser",
    default=_DEFAULTS.tool_call_parser,
    show_default=True,
    metavar="NAME",
    help="How the model writes tool calls: auto (by its chat template), none (no tools), "
    + ", ".join(FAMILIES)
    + ", or module:Class.",
)
@click.option(
    "--reasoning-parser",
    type=click.Choice([thoughts.AUTO, thoughts.NONE, *thoughts.FAMILIES]),
    default=_DEFAULTS.reasoning_parser,
    show_default=True,
    help="How the model marks its thoughts; auto goes by its chat template.",
)
@click.option("--log-level", type=click.Choice(_LOG_LEVELS), default="info", show_default=True)
def serve_command(**options: Any) -> None:
    """Serve MODEL over HTTP until SIGTERM or Ctrl-C."""
    log_level = options.pop("log_level")
    _set_up_logging(log_level)
    for flag, keys in (("--api-key", options["api_key"]), ("--admin-key", (options["admin_key"],))):
        if "" in keys:
            raise click.BadParameter(f"{flag} is empty; leave it out, or give a key.")
    if options["admin_key"] in options["api_key"]:
        raise click.BadParameter("--admin-key is one of the --api-key: every client would be an admin.")
    config, tls, state = engine_config(options, log_level), tls_files(options), state_settings(options)
    settings = GatewaySettings(
        host=options["host"],
        port=options["port"],
        api_keys=options["api_key"],
        keys_file=options["keys_file"],
        admin_key=options["admin_key"],
        tls=tls,
        cors_origins=options["cors_origins"],
        connection_limits=ConnectionLimits(
            max_connections=options["max_connections"],
            head_timeout_s=options["header_timeout"],
            idle_timeout_s=options["keepalive_timeout"],
        ),
        web=options["web"],
        served_model_names=options["served_model_name"],
        max_num_seqs=config.max_num_seqs,
        max_waiting=options["max_waiting"],
        max_waiting_tokens=options["max_waiting_tokens"],
        kv_quota=options["kv_quota"],
        drain_timeout_s=options["drain_timeout"],
        tool_call_parser=options["tool_call_parser"],
        reasoning_parser=options["reasoning_parser"],
        state=state,
        websocket_limits=websocket_limits(options),
    )
    outcome = run_server(
        config,
        settings,
        stall_timeout_s=options["stall_timeout"],
        engine_restarts=options["engine_restarts"],
    )
    if outcome.message is not None:
        click.echo(f"tidegate: {outcome.message}", err=True)
    sys.exit(outcome.status)


@main.command("chat")
@engine_options
@click.option("--url", help="Base URL of a running server.  [default: start one with the options above]")
@click.option("--api-key", envvar="TIDEGATE_API_KEY", help="Key to send to the server at --url.")
@click.option("--temperature", type=FiniteFloat(0, 2), help="0 is greedy.  [default: the model's]")
def chat_command(url: str | None, api_key: str | None, temperature: float | None, **options: Any) -> None:
    """Chat in the terminal with MODEL, or with a running server."""
    console = Console(highlight=False)
    try:
        with contextlib.ExitStack() as scope:
            if url is not None:
                server = Server.at(url, api_key)
            else:
                server = scope.enter_context(own_server(_given_arguments(options)))
            run_chat(server, console, temperature)
    except ChatError as error:
        click.echo(f"tidegate: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


@main.command("doctor", short_help="Show what was found here and what a server would do with it.")
@engine_options
@tls_options
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report here."
)
def doctor_command(json_path: Path | None, **options: Any) -> None:
    """Show what was found on this machine and what a server would do with it."""
    _set_up_logging("warning")
    if json_path is not None and not json_path.parent.is_dir():
        raise click.BadParameter(f"there is no directory {json_path.parent}.", param_hint="--json")
    tls = tls_files(options)
    try:
        diagnosis = run_doctor(engine_config(options, "warning"), tls, Console(highlight=False))
    except ConfigError as error:
        click.echo(f"tidegate: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    if json_path is not None:
        _write_json(json_path, diagnosis.as_json())
    sys.exit(diagnosis.exit_status)


main.add_command(keys_command)


def _origins(given: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(map(parse_origin, given))
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def _write_json(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from error


def _given_arguments(options: dict[str, Any]) -> list[str]:
    """The engine options as they were given, for the command line of another process."""
    context = click.get_current_context()
    arguments = []
    for parameter in context.command.params:
        name = parameter.name
        if (
            name not in options
            or context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE
        ):
            continue
        value = options[name]
        if isinstance(parameter, click.Argument):
            arguments.append(str(value))
        elif isinstance(value, bool):
            arguments.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            arguments += [parameter.opts[0], str(value)]
    return arguments


def _set_up_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # What is not even HTTP is answered 400; a traceback with the client's bytes for each helps nobody.
    # Faults of ours are logged where they happen, with the request's id.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    # It would show subprotocols that we do not choose, and one of them may be a key.
    logging.getLogger("aiohttp.websocket").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    main()
