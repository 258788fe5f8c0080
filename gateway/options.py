"""Command-line options that describe an engine, shared by serve, chat and doctor.

Flag names follow vLLM where it has one. Values become an ``EngineConfig``; what cannot be read is
refused by click with the option's name and exit code 2.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.config import (
    ConfigError,
    DiskTier,
    EngineConfig,
    EngineScript,
    MemorySize,
    parse_disk_tier,
    parse_engine,
    parse_memory_size,
    parse_optional_size,
    parse_share,
)
from gateway.connection_limits import WebSocketLimits
from gateway.responses.records import StateSettings
from gateway.tls import TlsFiles

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")


class Parsed(click.ParamType[Value]):
    """A value that one of ``engine.config``'s parsers reads from text, or refuses with a ConfigError."""

    def __init__(self, name: str, kind: type[Value], parse: Callable[[str], Value]) -> None:
        self.name = name
        self._kind = kind
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        if isinstance(value, self._kind):
            return value
        try:
            return self._parse(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


_SIZE = Parsed("size", MemorySize, parse_memory_size)
_SIZE_OR_OFF = Parsed("size", MemorySize, parse_optional_size)
_DISK = Parsed("path", DiskTier, parse_disk_tier)
SHARE = Parsed("share", float, parse_share)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([smhd]?)")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_ABSURD_S = 10**10
_POSITIVE = click.IntRange(min=1)
_DEFAULTS = EngineConfig(model="")


class FiniteFloat(click.FloatRange):
    """A number in a range; neither infinity nor NaN, which passes every comparison, is one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


_ENGINE_OPTIONS = (
    click.argument("model", required=False, default=""),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
                 help="Where to run; auto takes the GPU if there is one."),
    click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto",
                 show_default=True,
                 help="Type of weights and KV; auto takes bfloat16 where it is native. float32, if given,"
                      " rounds no input of a product."),
    click.option("--load-format", type=click.Choice(["auto", "dummy"]), default="auto", show_default=True,
                 help="dummy makes seeded random weights for the model's config, for benchmarks."),
    click.option("--max-model-len", type=_POSITIVE,
                 help="Longest prompt plus answer, in tokens.  [default: the model's]"),
    click.option("--block-size", type=click.Choice([16, 32, 64, 128]), default=_DEFAULTS.block_size,
                 show_default=True, help="Tokens in a KV block."),
    click.option("--device-kv", type=_SIZE,
                 help="KV pool on the device: 512MiB, 2GiB, or a share of its memory such as 50%."
                      "  [default: 25% of RAM, or what the GPU has left]"),
    click.option("--host-kv", type=_SIZE_OR_OFF,
                 help="KV tier in host memory (pinned, with a GPU), for preempted and idle sequences, or off."
                      "  [default: 25% of RAM with a GPU, else off]"),
    click.option("--disk-kv", type=_DISK, metavar="PATH[:SIZE]",
                 help="KV tier in files under PATH, found again after a restart; a share is of free space."
                      "  [default: off; without SIZE 10GiB, or half of what is free]"),
    click.option("--eviction", default=_DEFAULTS.eviction, show_default=True, metavar="POLICY",
                 help="What a full tier gives up first: lru, fifo, lfu, s3fifo, cost_aware, session_aware, or"
                      " module:Class."),
    click.option("--write-policy", default=_DEFAULTS.write_policy, show_default=True, metavar="POLICY",
                 help="When blocks are copied a tier down: back, through, selective, or module:Class."),
    click.option("--restore", default=_DEFAULTS.restore, show_default=True, metavar="POLICY",
                 help="How KV comes back up: recompute, swap, adaptive, overlap, or module:Class."),
    click.option("--kv-checksums", is_flag=True, default=False,
                 help="Verify blocks in host memory on every move too. Those on disk always are."),
    click.option("--deterministic", is_flag=True, default=False,
                 help="Greedy text is the same with any pool, batch, tier, policy and preemption; slower."),
    click.option("--max-num-seqs", type=_POSITIVE, default=_DEFAULTS.max_num_seqs, show_default=True,
                 help="Sequences that run in one step."),
    click.option("--max-num-batched-tokens", type=_POSITIVE, default=_DEFAULTS.max_num_batched_tokens,
                 show_default=True, help="Tokens computed in one step; long prompts are cut into chunks."),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True, show_default=True,
                 help="Reuse the KV of prompts that begin alike."),
    click.option("--grammar-timeout", "grammar_timeout_s", type=FiniteFloat(min=0, min_open=True),
                 default=_DEFAULTS.grammar_timeout_s, show_default=True,
                 help="Processor seconds that compiling a schema or grammar for structured output may take."),
    click.option("--threads", type=_POSITIVE,
                 help="Compute threads of a CPU engine.  [default: by core count]"),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=_DEFAULTS.seed, show_default=True,
                 help="Seed of dummy weights."),
)  # fmt: skip


def engine_options(command: Command) -> Command:
    """Add MODEL and the engine's options to a command; it gets them as keyword arguments."""
    for option in reversed(_ENGINE_OPTIONS):
        command = option(command)
    return command


def engine_kind_option(command: Command) -> Command:
    """Add ``--engine`` to a command; it gets the script, or None for an engine that computes."""
    option = click.option(
        "--engine", "script", type=Parsed("engine", EngineScript, parse_engine), default="model",
        show_default=True, metavar="KIND",
        help="What answers: the model; or, to measure the server itself, scripted:RATE[/PHASES], which makes"
             " up RATE tokens a second for each answer, in words of the model's tokenizer, in PHASES groups"
             " by turns.",
    )  # fmt: skip
    return option(command)


def _state_size(text: str) -> MemorySize:
    size = parse_memory_size(text)
    if size.num_bytes is None or size.num_bytes < 2**20:
        raise ConfigError(f"{text!r} is no size from 1MiB on, such as 256MiB.")
    return size


def _seconds(text: str) -> float:
    """Read ``90``, ``90s``, ``15m``, ``12h`` or ``30d``."""
    match = _DURATION.fullmatch(text)
    if match is None or not 0 < (seconds := float(match[1]) * _UNITS_S[match[2]]) < _ABSURD_S:
        raise ConfigError(f"{text!r} is no time; write it like 90s, 15m, 12h or 30d.")
    return seconds


_STATE_OPTIONS = (
    click.option("--state", "state_path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
                 help="File for responses and conversations, which then survive a restart."
                      "  [default: in memory]"),
    click.option("--state-size", type=Parsed("size", MemorySize, _state_size), default="256MiB",
                 show_default=True, help="Most that they may take; those used least recently go first."),
    click.option("--state-ttl", type=Parsed("time", float, _seconds), default="30d", show_default=True,
                 help="How long they are kept after their last use: 90s, 15m, 12h, 30d."),
)  # fmt: skip


def state_options(command: Command) -> Command:
    """Add the options of stored responses to a command; it gets them as keyword arguments."""
    for option in reversed(_STATE_OPTIONS):
        command = option(command)
    return command


def state_settings(options: dict[str, Any]) -> StateSettings:
    """What ``state_options`` gathered, taken out of ``options``."""
    path, size, ttl_s = (options.pop(name) for name in ("state_path", "state_size", "state_ttl"))
    return StateSettings(path, max_bytes=size.num_bytes, ttl_s=ttl_s)


_SOCKETS = WebSocketLimits()
_WEBSOCKET_OPTIONS = (
    click.option("--ws-ping-interval", type=FiniteFloat(min=0, min_open=True), default=_SOCKETS.ping_s,
                 show_default=True, help="Seconds of silence after which a WebSocket's client is pinged."),
    click.option("--ws-idle-timeout", type=FiniteFloat(min=0, min_open=True), default=_SOCKETS.idle_timeout_s,
                 show_default=True, help="Seconds without a turn after which a WebSocket is closed."),
    click.option("--ws-max-age", type=FiniteFloat(min=0, min_open=True), default=_SOCKETS.max_age_s,
                 show_default=True, help="Seconds after which a WebSocket takes no more turns."),
    click.option("--ws-compression/--no-ws-compression", default=_SOCKETS.deflates, show_default=True,
                 help="Compress messages for clients that offer it; that takes much memory each."),
)  # fmt: skip


def websocket_options(command: Command) -> Command:
    """Add the options of WebSockets to a command; it gets them as keyword arguments."""
    for option in reversed(_WEBSOCKET_OPTIONS):
        command = option(command)
    return command


def websocket_limits(options: dict[str, Any]) -> WebSocketLimits:
    """What ``websocket_options`` gathered, taken out of ``options``."""
    ping_s, idle_timeout_s, max_age_s, deflates = (
        options.pop(name) for name in ("ws_ping_interval", "ws_idle_timeout", "ws_max_age", "ws_compression")
    )
    return WebSocketLimits(
        ping_s=ping_s, idle_timeout_s=idle_timeout_s, max_age_s=max_age_s, deflates=deflates
    )


_TLS_OPTIONS = (
    click.option("--ssl-certfile", metavar="FILE",
                 help="Serve HTTPS with this certificate and its chain (PEM); read again on SIGHUP."
                      "  [default: plain HTTP]"),
    click.option("--ssl-keyfile", metavar="FILE",
                 help="Private key of the certificate (PEM).  [default: in --ssl-certfile]"),
    click.option("--ssl-keyfile-password", envvar="TIDEGATE_SSL_KEYFILE_PASSWORD",
                 help="Password of the private key; better set as TIDEGATE_SSL_KEYFILE_PASSWORD."),
)  # fmt: skip


def tls_options(command: Command) -> Command:
    """Add the options of HTTPS to a command; it gets them as keyword arguments."""
    for option in reversed(_TLS_OPTIONS):
        command = option(command)
    return command


def tls_files(options: dict[str, Any]) -> TlsFiles | None:
    """What ``tls_options`` gathered, taken out of ``options``; None if plain HTTP is to be spoken."""
    certfile, keyfile, password = (
        options.pop(name) for name in ("ssl_certfile", "ssl_keyfile", "ssl_keyfile_password")
    )
    if certfile is not None:
        return TlsFiles(certfile, keyfile, password)
    if keyfile is not None:
        raise click.BadParameter("--ssl-keyfile is of no use without --ssl-certfile.")
    return None


def engine_config(options: dict[str, Any], log_level: str) -> EngineConfig:
    """Build the settings from what ``engine_options`` gathered, taking those entries out of ``options``."""
    fields = {name: options.pop(name) for name in EngineConfig.__struct_fields__ if name in options}
    return EngineConfig(**fields, cache_secret=secrets.token_bytes(32), log_level=log_level)
