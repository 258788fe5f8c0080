"""Command-line options that the commands share, and what they are read into.

Flags are named as guidellm and ``vllm bench serve`` name them where they agree. What cannot be read, or
contradicts itself, is refused with a sentence and exit code 2, before anything is started or sent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Command], Command]
ENDPOINTS = ("chat", "completions", "responses")
TRANSPORTS = ("sse", "ws")
ARRIVALS = ("poisson", "gamma", "constant", "trace")
DEFAULT_URL = "http://127.0.0.1:8000"
_option = partial(click.option, show_default=True)
_POSITIVE = click.IntRange(min=1)


class FiniteFloat(click.FloatRange):
    """A number in a range; neither infinity nor NaN, which passes every comparison, is one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class OutputFile(click.Path):
    """A file that can be written, which is found out before there is anything to write."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            _try_to_make(path)
        except OSError as error:
            self.fail(f"{path} cannot be written: {error.strerror or error}.", param, ctx)
        return path


class OutputFolder(click.Path):
    """A directory that files can be made in; it is made if need be."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        folder = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _try_to_make(folder / f".tideload-{os.getpid()}")
        except OSError as error:
            self.fail(f"{folder} cannot be written into: {error.strerror or error}.", param, ctx)
        return folder


def _try_to_make(path: Path) -> None:
    """And take it away again. Raises OSError. Of what is there already click has asked the system."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    path.unlink()


MORE_THAN_0 = FiniteFloat(min=0, min_open=True)
SHARE = FiniteFloat(min=0, max=1)
SECONDS = FiniteFloat(min=0)

_TARGET_OPTIONS = (
    _option("--model", metavar="NAME",
            help="Model to ask.  [default: the first that the server names]"),
    _option("--endpoint", type=click.Choice(ENDPOINTS), default="chat",
            help="API to speak: /v1/chat/completions, /v1/completions or /v1/responses."),
    _option("--transport", type=click.Choice(TRANSPORTS), default="sse",
            help="Streamed HTTP answers, or a WebSocket (responses only)."),
    _option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
            help="Send this too; may be given more than once. No value of one gets into a report."),
    _option("--api-key", envvar="TIDELOAD_API_KEY", metavar="KEY",
            help="Key to send; better set as TIDELOAD_API_KEY, which `ps` does not show."),
    _option("--tokenizer", metavar="FILE",
            help="tokenizer.json of the model, for servers that have no /tokenize."),
    _option("--extra-body", metavar="JSON",
            help='Fields that each request gets besides, such as {"temperature": 0.7}.'),
    _option("--timeout", "timeout_s", type=MORE_THAN_0, default=600.0, metavar="SECONDS",
            help="What one answer may take; then it has failed."),
)  # fmt: skip
_BASE_URL = _option("--base-url", default=DEFAULT_URL, metavar="URL", help="Where the server is.")
_WORKLOAD_OPTIONS = (
    _option("--num-requests", type=_POSITIVE, metavar="N",
            help="Requests of each repeat.  [default: 100, and four for each user; 50 or more of each load"
                 " of a sweep]"),
    _option("--sessions", type=_POSITIVE, metavar="N",
            help="Conversations of each repeat, in place of --num-requests."),
    _option("--duration", "duration_s", type=MORE_THAN_0, metavar="SECONDS",
            help="Time in which they begin, in place of a number. Users send until it is over."),
    _option("--input-len", metavar="LENGTHS",
            help="Tokens of a prompt, with the server's template: 512, uniform:64:512, normal:512:64 (mean"
                 " and deviation), lognormal:512:0.5 (median and deviation of the logarithm), or trace."
                 "  [default: 512, or trace with --trace]"),
    _option("--output-len", metavar="LENGTHS",
            help="Tokens of an answer, forced where the server can."
                 "  [default: 128, or trace with --trace]"),
    _option("--trace", "trace_name", metavar="NAME|FILE",
            help="Replay lengths, times and shared prefixes: mooncake-conversation, mooncake-synthetic,"
                 " azure-conv, azure-code, sharegpt-multiturn, arxiv, sharegpt, alpaca, or a file"
                 " (Mooncake's JSON lines, CSV, BurstGPT, Azure 2023 and 2024)."),
    _option("--trace-scale", type=MORE_THAN_0, default=1.0, metavar="FACTOR",
            help="Of the trace's times: 0.5 is twice the load. --rate sets it to give that rate."),
    _option("--arrival", type=click.Choice(ARRIVALS),
            help="When requests come.  [default: by the trace if it has times, else poisson]"),
    _option("--burstiness", type=MORE_THAN_0, default=1.0, metavar="SHAPE",
            help="Shape of gamma arrivals: 1 is poisson, less comes in bursts, more comes evenly."),
    _option("--ramp-to", type=MORE_THAN_0, metavar="RATE",
            help="Let the rate go linearly from --rate to this."),
    _option("--max-concurrency", type=_POSITIVE, metavar="N",
            help="Never more requests than this at a time. What waits for that has its wait counted."
                 " Without a rate, or a trace with times, it is the users of --concurrency."),
    _option("--num-prefixes", type=click.IntRange(min=0), default=0, metavar="N",
            help="Beginnings that prompts share, each with many."),
    _option("--prefix-len", type=click.IntRange(min=0), default=0, metavar="N",
            help="Tokens of one, beyond --input-len."),
    _option("--turns", default="1", metavar="LENGTHS",
            help="Turns of a conversation; each builds on the answers before it."),
    _option("--later-input-len", metavar="LENGTHS",
            help="Tokens that a later turn adds.  [default: as --input-len]"),
    _option("--think", "think_s", default="0", metavar="SECONDS",
            help="Pause between an answer and the same user's next request, also like uniform:1:5."),
    _option("--return", "return_s", metavar="SECONDS",
            help="Time from the start of a turn to the next, if its answer has come by then."),
    _option("--n", type=_POSITIVE, default=1, metavar="N",
            help="Answers to each prompt."),
    _option("--leave", "leave_share", type=SHARE, default=0.0, metavar="SHARE",
            help="Share of the clients that hang up in the midst of an answer."),
    _option("--slow", "slow_share", type=SHARE, default=0.0, metavar="SHARE",
            help="Share of the clients that read slowly."),
    _option("--slow-pause", "slow_pause_s", type=SECONDS, default=0.2, metavar="SECONDS",
            help="What those wait after each piece."),
    _option("--seed", type=click.IntRange(min=0), default=0, metavar="N",
            help="Of lengths, times and who leaves; each repeat makes its own from it. Words differ all the"
                 " same."),
)  # fmt: skip
_LOAD_OPTIONS = (
    _option("--rate", type=MORE_THAN_0, metavar="RATE",
            help="Conversations begun a second (requests, where each is one). An open load."),
    _option("--concurrency", type=_POSITIVE, metavar="N",
            help="Users, each of whom waits for an answer before the next request. A closed load."
                 "  [default: --max-concurrency or 1, unless there is a rate or a trace with times]"),
)  # fmt: skip
_MEASURING_OPTIONS = (
    _option("--warmup", "num_warmup", type=click.IntRange(min=0), default=8, metavar="N",
            help="Requests before each repeat that are in no figure."),
    _option("--keep-cache", is_flag=True,
            help="Ask the same prompts at the same times in each repeat and run: the server may know them."),
    _option("--slo", metavar="LIMITS",
            help="What a request must keep to be good: ttft=500ms,tpot=50ms; itl and e2e too."),
)  # fmt: skip
_OUTPUT_OPTIONS = (
    _option("--json", "json_path", type=OutputFile(), metavar="FILE",
            help="Write all of it, with what is needed to run it again (docs/loadtest.md)."),
    _option("--html", "html_path", type=OutputFile(), metavar="FILE",
            help="Write a page that needs nothing beside it."),
    _option("--png", "png_path", type=OutputFolder(), metavar="DIR",
            help="Write the pictures into this directory."),
)  # fmt: skip


def _adding(options: tuple[Option[Any], ...]) -> Option[Any]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


target_options = _adding((_BASE_URL, *_TARGET_OPTIONS))
target_options_but_url = _adding(_TARGET_OPTIONS)
load_options = _adding(_LOAD_OPTIONS)
workload_options = _adding(_WORKLOAD_OPTIONS)
measuring_options = _adding(_MEASURING_OPTIONS)
output_options = _adding(_OUTPUT_OPTIONS)


def repeats_option(default: int) -> Option[Any]:
    return _option(
        "--repeats", type=_POSITIVE, default=default, metavar="N",
        help="Runs of each load, with prompts of their own; intervals then know how runs differ.",
    )  # fmt: skip
