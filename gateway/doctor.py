"""``tidegate doctor``: what was found on this machine and what a server would do with it.

Starts the engine for real with the given options, so that what it prints is what serving would use.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.client import EngineClient, EngineStartError
from engine.config import EngineConfig
from engine.messages import EngineInfo

_PACKAGES = ("tidegate", "torch", "numba", "transformers", "aiohttp", "uvloop")


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
    failure: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": {finding.topic: finding.value for finding in self.machine},
            "engine": {finding.topic: finding.value for finding in self.engine},
            "warnings": list(self.warnings),
            "failure": self.failure,
        }


async def diagnose(config: EngineConfig) -> Diagnosis:
    """Look at the machine and start an engine with ``config``."""
    machine = _look_at_machine()
    try:
        client = await EngineClient.start(config)
    except EngineStartError as error:
        return Diagnosis(machine, (), _machine_warnings(), str(error))
    info = client.info
    await client.close()
    return Diagnosis(machine, _describe(info), (*_machine_warnings(), *_engine_warnings(info)), None)


def run_doctor(config: EngineConfig, console: Console) -> Diagnosis:
    """Diagnose and print the report."""
    with console.status("starting an engine with these options"):
        diagnosis = asyncio.run(diagnose(config))
    for title, findings in (("machine", diagnosis.machine), ("engine", diagnosis.engine)):
        if findings:
            console.print(_table(title, findings))
    for warning in diagnosis.warnings:
        console.print(f"[yellow]warning[/yellow]: {warning}", highlight=False)
    if diagnosis.failure is not None:
        console.print(f"[red]cannot serve[/red]: {diagnosis.failure}", highlight=False)
    elif not diagnosis.warnings:
        console.print("[green]ready to serve[/green]")
    return diagnosis


def _table(title: str, findings: tuple[Finding, ...]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.topic, finding.text)
    return table


def _look_at_machine() -> tuple[Finding, ...]:
    memory = _memory_bytes()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    versions = {name: metadata.version(name) for name in _PACKAGES}
    return (
        Finding("system", system, system),
        Finding("processor", f"{cores} cores, {_cpu_model()}", cores),
        Finding("memory", f"{_gib(memory.total)}, {_gib(memory.available)} available", memory.total),
        Finding("open files", str(files), files),
        Finding("python", platform.python_version(), platform.python_version()),
        Finding("packages", ", ".join(" ".join(item) for item in versions.items()), versions),
    )


def _describe(info: EngineInfo) -> tuple[Finding, ...]:
    tokens = info.num_blocks * info.block_size
    size = f"{info.architecture}, {info.num_parameters / 1e6:.0f} M parameters"
    pool = (
        f"{_gib(info.kv_bytes)}: {info.num_blocks} blocks of {info.block_size} tokens"
        f" = {tokens} tokens, {tokens / info.max_model_len:.1f} full windows"
    )
    template = "yes" if info.chat_template else "no: /v1/chat/completions will refuse"
    return (
        Finding("model", f"{info.model_name} ({size})", info.model_name),
        Finding("device", f"{info.device}, {info.threads} compute threads", info.device),
        Finding("dtype", info.dtype, info.dtype),
        Finding("attention", info.attention_backend, info.attention_backend),
        Finding("window", f"{info.max_model_len} tokens", info.max_model_len),
        Finding("weights", _gib(info.weight_bytes), info.weight_bytes),
        Finding("device KV", pool, info.kv_bytes),
        Finding("chat template", template, bool(info.chat_template)),
    )


def _machine_warnings() -> tuple[str, ...]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 4096:
        return (f"at most {files} open files: thousands of clients need more, see `ulimit -n`.",)
    return ()


def _engine_warnings(info: EngineInfo) -> tuple[str, ...]:
    warnings = list(info.notes)
    if info.device == "cpu" and info.kv_bytes + info.weight_bytes > _memory_bytes().available:
        warnings.append("weights and KV pool together are more than the available memory; lower --device-kv.")
    if info.num_blocks * info.block_size < 2 * info.max_model_len:
        warnings.append(
            "the KV pool holds less than two full windows: long requests will run one by one;"
            " raise --device-kv or lower --max-model-len."
        )
    return tuple(warnings)


@dataclass(frozen=True, slots=True)
class _Memory:
    total: int
    available: int


def _memory_bytes() -> _Memory:
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return _Memory(total=fields["MemTotal"], available=fields["MemAvailable"])


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown model"
