"""What the options of a command say, as the types that the load test works with.

Each function takes its own options out of those that click gathered. What contradicts itself is refused with
a sentence and exit code 2.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from loadtest.drivers.target import Target, TargetError
from loadtest.measuring.bench import AskedLoad, Measuring
from loadtest.slo import Slo, SloError
from loadtest.slo import parse as parse_slo
from loadtest.spec import EACH_USER, Arrival, WorkloadError, WorkloadSpec, check
from loadtest.traces import Trace, TraceError, read_trace

Given = dict[str, Any]
_OWN_FIELDS = {
    "model": "--model",
    "n": "--n",
    "stream": "the load test, which reads streams alone",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), "--output-len"),
    **dict.fromkeys(("messages", "prompt", "input"), "--input-len, --trace and their like"),
}
"""Of a body, by what says them: of anything else a report would not know."""
DEFAULT_REQUESTS = 100
DEFAULT_SESSIONS = 25  # of users that have conversations


@dataclass(frozen=True, slots=True)
class Output:
    """Where a report goes beside the terminal; None: nowhere."""

    json_path: Path | None
    html_path: Path | None
    png_path: Path | None


def take_target(options: Given, base_url: str | None = None) -> Target:
    """``base_url``: in place of the option."""
    given_url = options.pop("base_url", "")
    fields = {
        "base_url": given_url if base_url is None else base_url,
        "model": options.pop("model") or "",
        "api": options.pop("endpoint"),
        "transport": options.pop("transport"),
        "headers": headers(options.pop("headers"), options.pop("api_key")),
        "timeout_s": options.pop("timeout_s"),
        "tokenizer": options.pop("tokenizer") or "",
        "extra": _extra(options.pop("extra_body")),
    }
    try:
        return Target(**fields)
    except TargetError as error:
        raise click.UsageError(str(error)) from None


def headers(given: Sequence[str], api_key: str | None) -> dict[str, str]:
    found = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter("must be written as 'NAME: VALUE'.", param_hint="--header")
        found[name.strip()] = value.strip()
    return found


def take_workload(options: Given) -> WorkloadSpec:
    """How much of it there is may be left open."""
    name = options.pop("trace_name")
    arrival = options.pop("arrival")
    fields = {field: options.pop(field) for field in WorkloadSpec.__dataclass_fields__ if field in options}
    return WorkloadSpec(
        **fields,
        trace=None if name is None else _trace(name),
        arrival=None if arrival is None else Arrival(arrival),
    )


def take_measuring(options: Given) -> Measuring:
    return Measuring(
        slo=_slo(options.pop("slo")),
        num_warmup=options.pop("num_warmup"),
        keep_cache=options.pop("keep_cache"),
    )


def take_output(options: Given) -> Output:
    """Refuses pictures where there is nothing to draw them with, before anything is measured."""
    output = Output(options.pop("json_path"), options.pop("html_path"), options.pop("png_path"))
    if (output.html_path or output.png_path) and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--html and --png need matplotlib: pip install 'tidegate[report]'.")
    return output


def take_load(options: Given, spec: WorkloadSpec) -> AskedLoad:
    """Of a single load. Without a rate, or times of a trace, it is closed: as many users as may be served at
    a time, or one.
    """
    rate, users = options.pop("rate"), options.pop("concurrency")
    if rate is not None and users is not None:
        raise click.UsageError(
            "--rate and --concurrency exclude each other: who decides when a request is sent?"
        )
    if users is not None and spec.max_concurrency is not None:
        raise click.UsageError("--concurrency is the number of users: it takes no --max-concurrency.")
    if rate is None and users is None and spec.arrival_at(None) is Arrival.CLOSED:
        users = spec.max_concurrency or 1
    return AskedLoad(rate, users)


def check_together(target: Target, spec: WorkloadSpec) -> None:
    """Refuses what one API cannot ask for."""
    if spec.n > 1 and target.api == "responses":
        raise click.UsageError("--n is for --endpoint chat and completions: a response is one answer.")


def check_workload(spec: WorkloadSpec, load: AskedLoad) -> None:
    """Refuses what no server could be asked."""
    try:
        check(load.of(spec), load.rate)
    except WorkloadError as error:
        raise click.UsageError(str(error)) from None


def counted(spec: WorkloadSpec, load: AskedLoad) -> WorkloadSpec:
    """With an end, where none was given. Users are to be there for a while, all of them."""
    if spec.num_requests or spec.sessions or spec.duration_s:
        return spec
    least = EACH_USER * (load.users or 0)
    if least and spec.has_conversations:
        return replace(spec, sessions=max(DEFAULT_SESSIONS, least))
    return replace(spec, num_requests=max(DEFAULT_REQUESTS, least))


def _extra(text: str | None) -> dict[str, Any]:
    """As msgspec reads it, which has no NaN: that is no JSON, and would be sent as null."""
    try:
        fields = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise click.BadParameter("must be a JSON object.", param_hint="--extra-body") from None
    for name in fields.keys() & _OWN_FIELDS.keys():
        raise click.BadParameter(f"{name} is said by {_OWN_FIELDS[name]}.", param_hint="--extra-body")
    return fields


def _trace(name: str) -> Trace:
    try:
        return read_trace(name)
    except TraceError as error:
        raise click.BadParameter(str(error), param_hint="--trace") from None


def _slo(text: str | None) -> Slo | None:
    try:
        return None if text is None else parse_slo(text)
    except SloError as error:
        raise click.BadParameter(str(error), param_hint="--slo") from None
