"""``tidegate doctor``: what was found on this machine and what a server would do with it.

Starts the engine for real with the given options, so that what it prints is what serving would use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.client import EngineClient, EngineStartError
from engine.config import EngineConfig
from engine.messages import EngineInfo
from gateway.lifecycle import EXIT_FAULT, EXIT_USER_ERROR
from gateway.state import package_version
from gateway.tls import ServerTls, TlsFiles

_PACKAGES = ("torch", "triton", "numba", "transformers", "aiohttp", "uvloop")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: a topic, what was found, and the plain value for JSON."""

    topic: str
    text: str
    value: Any


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What doctor found, what it advises, and why no engine could start (if none could)."""

    machine: tuple[Finding, ...]
    engine: tuple[Finding, ...]
    warnings: tuple[str, ...]
    failure: EngineStartError | None

    @property
    def exit_status(self) -> int:
        """As ``tidegate serve`` would end: 2 if the user can put it right, 1 if not."""
        if self.failure is None:
            return 0
        return EXIT_USER_ERROR if self.failure.is_user_error else EXIT_FAULT

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": {finding.topic: finding.value for finding in self.machine},
            "engine": {finding.topic: finding.value for finding in self.engine},
            "warnings": list(self.warnings),
            "failure": None if self.failure is None else str(self.failure),
        }


async def diagnose(config: EngineConfig, tls: TlsFiles | None) -> Diagnosis:
    """Look at the machine and start an engine with ``config``. Raises ConfigError for ``tls``."""
    machine = (*_look_at_machine(), _describe_protocol(tls))
    try:
        client = await EngineClient.start(msgspec.structs.replace(config, is_probe=True))
    except EngineStartError as error:
        return Diagnosis(machine, (), _machine_warnings(), error)
    info = client.info
    await client.close()
    return Diagnosis(machine, _describe(info), (*_machine_warnings(), *_engine_warnings(info)), None)


def run_doctor(config: EngineConfig, tls: TlsFiles | None, console: Console) -> Diagnosis:
    """Diagnose and print the report. Raises ConfigError for ``tls``."""
    with console.status("starting an engine with these options"):
        diagnosis = asyncio.run(diagnose(config, tls))
    for title, findings in (("machine", diagnosis.machine), ("engine", diagnosis.engine)):
        if findings:
            console.print(_table(title, findings))
    for warning in diagnosis.warnings:
        console.print(f"[yellow]warning[/yellow]: {escape(warning)}")
    if diagnosis.failure is not None:
        console.print(f"[red]cannot serve[/red]: {escape(str(diagnosis.failure))}")
    elif not diagnosis.warnings:
        console.print("[green]ready to serve[/green]")
    return diagnosis


def _table(title: str, findings: tuple[Finding, ...]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.topic, escape(finding.text))
    return table


def _look_at_machine() -> tuple[Finding, ...]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    versions = {"tidegate": package_version()} | _versions()
    return (
        Finding("system", system, system),
        Finding("processor", f"{cores} cores, {_cpu_model()}", cores),
        Finding("open files", str(files), files),
        Finding("python", platform.python_version(), platform.python_version()),
        Finding("packages", ", ".join(" ".join(item) for item in versions.items()), versions),
    )


def _versions() -> dict[str, str]:
    """Of the packages that are there: triton is only where there may be a GPU."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _describe_protocol(tls: TlsFiles | None) -> Finding:
    if tls is None:
        return Finding("protocol", "http", "http")
    ServerTls(tls)
    return Finding("protocol", f"https, with the certificate in {tls.certfile}", "https")


def _describe(info: EngineInfo) -> tuple[Finding, ...]:
    tokens = info.num_blocks * info.block_size
    size = f"{info.architecture}, {info.num_parameters / 1e6:.0f} M parameters"
    pool = (
        f"{_gib(info.kv_bytes)}: {info.num_blocks} blocks of {info.block_size} tokens"
        f" = {tokens} tokens, {tokens / info.max_model_len:.1f} full windows"
    )
    memory = f"{_gib(info.memory_total_bytes)}, {_gib(info.memory_available_bytes)} available"
    template = "yes" if info.chat_template else "no: /v1/chat/completions will refuse"
    return (
        Finding("model", f"{info.model_name} ({size})", info.model_name),
        Finding("device", f"{info.device}, {info.threads} compute threads", info.device),
        Finding("dtype", info.dtype, info.dtype),
        Finding("attention", info.attention_backend, info.attention_backend),
        Finding("memory", memory, info.memory_total_bytes),
        Finding("window", f"{info.max_model_len} tokens", info.max_model_len),
        Finding("weights", _gib(info.weight_bytes), info.weight_bytes),
        Finding("device KV", pool, info.kv_bytes),
        *_describe_lower_tiers(info),
        Finding("policies", ", ".join(info.policies) + " (eviction, write, restore)", list(info.policies)),
        Finding("deterministic", "yes" if info.deterministic else "no", info.deterministic),
        Finding("chat template", template, bool(info.chat_template)),
    )


def _machine_warnings() -> tuple[str, ...]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 4096:
        return (f"at most {files} open files: thousands of clients need more, see `ulimit -n`.",)
    return ()


def _engine_warnings(info: EngineInfo) -> tuple[str, ...]:
    warnings = list(info.notes)
    if info.kv_bytes + info.weight_bytes > info.memory_available_bytes:
        warnings.append("weights and KV pool together are more than the available memory; lower --device-kv.")
    if info.num_blocks * info.block_size < 2 * info.max_model_len:
        warnings.append(
            "the KV pool holds less than two full windows: long requests will run one by one;"
            " raise --device-kv or lower --max-model-len."
        )
    return (*warnings, *_tier_warnings(info))


def _describe_lower_tiers(info: EngineInfo) -> tuple[Finding, ...]:
    host = f"{_gib(info.host_kv_bytes)}: {info.host_blocks} blocks" if info.host_blocks else "off"
    disk = "off"
    if info.disk_blocks:
        disk = f"{_gib(info.disk_kv_bytes)}: {info.disk_blocks} blocks, {info.disk_blocks_found} found there"
    findings = [Finding("host KV", host, info.host_kv_bytes), Finding("disk KV", disk, info.disk_kv_bytes)]
    if info.host_link:
        findings.insert(1, Finding("host link", info.host_link, info.host_link))
    return tuple(findings)


def _tier_warnings(info: EngineInfo) -> tuple[str, ...]:
    """Settings of the KV tiers that do nothing, or less than they cost."""
    defaults = EngineConfig(model="")
    _, write, restore = info.policies
    warnings = []
    if not info.host_blocks:
        for flag, value, default in (
            ("--write-policy", write, defaults.write_policy),
            ("--restore", restore, defaults.restore),
        ):
            if value != default:
                warnings.append(f"{flag} {value} has no effect without --host-kv.")
        return tuple(warnings)
    if info.host_blocks * info.block_size < info.max_model_len:
        warnings.append("the host tier holds less than one full window; raise --host-kv.")
    if info.device == "cpu":
        warnings.append(
            "without a GPU the device pool is RAM too: what --host-kv takes would serve as well, and without"
            " copies, as part of --device-kv, unless it is there to stage --disk-kv or to try the tiers."
        )
    if restore == "recompute":
        warnings.append("with --restore recompute nothing is ever loaded from the tiers below the device.")
    if info.disk_blocks and info.disk_blocks < info.host_blocks:
        warnings.append("the disk tier is smaller than the host tier, so it keeps little that host does not.")
    if info.disk_blocks and write == "selective":
        warnings.append(
            "with --write-policy selective only blocks that were hit on host reach the disk: a conversation"
            " that returns for the first time after a restart is computed again."
        )
    return tuple(warnings)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown model"
