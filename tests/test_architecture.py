"""The arrows of the design: who may import whom, and what must load without torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "engine", "tiering", "loadtest", "benchmarks")
ALLOWED = {
    "tiering": {"tiering"},
    "engine": {"engine", "tiering"},
    "gateway": {"gateway", "engine"},
    "loadtest": {"loadtest", "engine", "tiering"},
    "benchmarks": {"benchmarks", "gateway", "engine", "tiering", "loadtest"},
}
GATEWAY_MAY_USE = {
    "engine.messages", "engine.stats", "engine.client", "engine.config", "engine.process",
    "engine.restarts", "engine.supervisor",
}  # fmt: skip
TORCH_FREE_ENGINE = (
    "messages", "stats", "config", "schedule", "request", "budget", "queues", "accounting", "recount",
    "scheduler", "sequence", "beam", "histories", "results", "room", "scoring", "reports",
    "fairness", "line", "parked_line", "turns", "claims", "sessions", "decoding",
    "core", "grammar_errors", "grammar_line", "grammar_room", "wire", "watchdog", "connection", "client",
    "process", "link", "scripted", "scripted_core", "scripted_process", "scripted_words",
    "restarts", "supervisor", "forget_log",
    "kernels.launch", "attention.triton.configs", "attention.triton.variants",
    "fused.configs", "fused.variants", "packed.layout", "loading.gguf_blocks",
)  # fmt: skip
DECIDERS = (
    "engine.request", "engine.budget", "engine.scheduler", "engine.schedule", "engine.watchdog",
    "engine.grammar_errors", "engine.grammar_line", "engine.grammar_room",
    "engine.sequence", "engine.beam", "engine.histories", "engine.results", "engine.room",
    "engine.scoring", "engine.reports", "engine.sessions",
    "engine.execution.draws", "engine.execution.step_layout", "engine.execution.step_memory",
    "engine.execution.table_rows",
    "engine.fairness", "engine.line", "engine.parked_line", "engine.turns", "engine.claims",
    "engine.decoding", "engine.packed.layout",
    "engine.wire", "engine.queues", "engine.accounting", "engine.recount", "tiering.block_pool",
    "tiering.block_manager",
    "tiering.tiers", "tiering.planner", "tiering.loads", "tiering.parking", "tiering.restore",
    "tiering.tables", "tiering.branches", "tiering.intake", "tiering.cost_model", "tiering.transfers",
    "tiering.refusals", "tiering.hashing", "tiering.integrity", "tiering.outlook", "tiering.whereabouts",
    "tiering.policies.ranking", "tiering.policies.score_queue",
    "tiering.residency", "tiering.types", "tiering.policies.eviction", "tiering.policies.write",
    "tiering.policies.restore", "tiering.movers.copy_runs", "tiering.movers.copy_stream",
    "tiering.movers.failure_count",
    "tiering.policies.registry", "gateway.protocol.sse",
    "gateway.protocol.ws_events", "gateway.protocol.ws_told", "gateway.protocol.ws_turns",
    "gateway.protocol.ws_session", "gateway.protocol.ws_frames", "engine.scripted_core",
    "engine.scripted_words", "benchmarks.gateway.requests",
    "gateway.detokenizer", "gateway.stop_matcher", "gateway.answer", "gateway.mailbox", "gateway.errors",
    "gateway.cors", "gateway.connection_limits", "gateway.tickets", "gateway.responses.records",
    "gateway.openai.responses.conversations",
    "gateway.openai.wire", "gateway.openai.choices", "gateway.openai.ranges",
    "gateway.openai.harmless", "gateway.openai.prompts", "gateway.openai.service", "gateway.openai.model",
    "gateway.openai.sampling",
    "gateway.openai.schema_limits", "gateway.openai.structured", "gateway.openai.validated",
    "gateway.openai.answers", "gateway.openai.body_parts", "gateway.openai.completions",
    "gateway.openai.notes", "gateway.openai.schemas",
    "gateway.openai.cache_hints", "gateway.openai.responses.events", "gateway.openai.responses.items",
    "gateway.openai.responses.prompt", "gateway.openai.responses.shape",
    "gateway.responses.event_log", "gateway.responses.paging",
    "gateway.tide", "gateway.tenants", "gateway.shared_room", "gateway.limits",
    "gateway.service_rate",
    "gateway.openai.messages", "gateway.openai.tools",
    "gateway.openai.tool_grammar", "gateway.openai.text_tools", "gateway.openai.chat_answers",
    "gateway.reading", "gateway.entry_queue", "gateway.thoughts", "gateway.tools.base",
    "gateway.tools.call_list", "gateway.tools.extent", "gateway.tools.forced", "gateway.tools.hermes",
    "gateway.tools.json_calls", "gateway.tools.llama3_json", "gateway.tools.mistral",
    "gateway.tools.python_values", "gateway.tools.pythonic", "gateway.tools.registry",
    "engine.core", "engine.messages", "engine.stats", "engine.config", "engine.restarts", "engine.forget_log",
    "engine.kernels.launch", "engine.attention.cpu_work",
    "engine.attention.triton.configs", "engine.attention.triton.variants",
    "engine.fused.configs", "engine.fused.variants",
    "benchmarks.session_plan", "benchmarks.session_results",
    "benchmarks.bench_rows", "benchmarks.bench_sections",
    "benchmarks.cpu_engine.asked", "benchmarks.cpu_engine.figures",
    "benchmarks.cpu_engine.floor", "benchmarks.cpu_engine.results", "benchmarks.cpu_engine.steps",
    "benchmarks.gpu_check.figures", "benchmarks.gpu_check.floors", "benchmarks.gpu_check.parts",
    "benchmarks.gpu_check.scales", "benchmarks.gpu_check.table", "benchmarks.gpu_check.workload",
    "loadtest.report.words", "loadtest.report.samples",
    "loadtest.drivers.answer", "loadtest.drivers.apis", "loadtest.drivers.events",
    "loadtest.drivers.failures", "loadtest.drivers.target",
)  # fmt: skip
MEASURED_FROM_WITHIN = ("benchmarks.scripted_server", "benchmarks.gateway.stages")
DOING = {"torch", "socket", "threading", "time", "asyncio", "selectors", "concurrent", "datetime"}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


def imports(path: Path) -> set[str]:
    """Everything a file imports, wherever in the file, as dotted names."""
    return _named_by(ast.walk(ast.parse(path.read_text())))


def _named_by(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import is relative"
            assert node.module is not None
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


MODULES = dict(modules())
TOP_OF_LOADTEST = [
    name
    for name, path in MODULES.items()
    if path.parent == ROOT / "loadtest" and path.name not in ("__init__.py", "cli.py", "clock.py")
]


def ours(name: str) -> set[str]:
    return {imported for imported in imports(MODULES[name]) if imported in MODULES} - {name}


def reached_from(name: str) -> set[str]:
    """A module and all of ours that it imports, directly or not."""
    reached, todo = set[str](), [name]
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += ours(module)
    return reached


def test_the_top_level_packages_are_these() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found == {*PACKAGES, "tests"}


@pytest.mark.parametrize("name", MODULES)
def test_arrows_between_packages(name: str) -> None:
    package = name.partition(".")[0]
    assert {imported.partition(".")[0] for imported in ours(name)} <= ALLOWED[package]
    if package == "loadtest" and name != "loadtest.simulate":  # the rest knows a server by HTTP only
        assert {imported.partition(".")[0] for imported in ours(name)} == {"loadtest"} or not ours(name)
    if package == "benchmarks" and name not in MEASURED_FROM_WITHIN:  # nor does what measures it
        assert not any(imported.startswith("gateway") for imported in ours(name))
    if package == "gateway":
        from_engine = {i for i in ours(name) if i.startswith("engine.")}
        assert from_engine <= GATEWAY_MAY_USE


def test_no_cycles() -> None:
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join((*trail, name))}"
        if name not in done:
            for imported in ours(name):
                visit(imported, (*trail, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


@pytest.mark.parametrize("name", [*DECIDERS, *TOP_OF_LOADTEST])
def test_deciders_own_no_tensor_socket_thread_or_clock(name: str) -> None:
    for module in reached_from(name):
        assert {imported.partition(".")[0] for imported in imports(MODULES[module])} & DOING == set(), module


def test_one_place_says_which_device_gets_which_parts() -> None:
    parts = {
        "engine.attention.cpu", "engine.attention.triton.backend", "engine.execution.gpu_runner",
        "engine.fused.ops", "engine.packed.llama", "engine.loading.packed_weights",
    }  # fmt: skip
    knowing = {
        name for name in MODULES.keys() - parts if not name.startswith("benchmarks") and ours(name) & parts
    }
    assert knowing == {"engine.execution.parts", "engine.attention.warm"}


def test_without_a_gpu_triton_is_not_needed() -> None:
    """It comes with torch for CUDA, and is imported where a GPU was found only."""
    loaded, todo = set[str](), ["engine.startup"]
    while todo:
        name = todo.pop()
        if name not in loaded:
            loaded.add(name)
            body = ast.parse(MODULES[name].read_text()).body
            todo += _named_by(body) & MODULES.keys()
            assert not any(imported.partition(".")[0] == "triton" for imported in _named_by(body)), name
    assert "engine.execution.parts" in loaded


def torch_free() -> list[str]:
    free = [f"engine.{name}" for name in TORCH_FREE_ENGINE]
    free += [name for name in MODULES if name.startswith(("gateway", "loadtest"))]
    free += [
        name
        for name in MODULES
        if name.startswith("tiering") and not name.startswith(("tiering.movers", "tiering.memory"))
    ]
    return free


def test_these_modules_load_without_torch() -> None:
    statement = f"import {', '.join(torch_free())}, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT)


def test_the_architecture_page_names_only_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:gateway|engine|tiering|loadtest|tests)/[\w/]+\.py)`", page))
    assert len(named) > 15
    missing = {name for name in named if not (ROOT / name).exists()}
    assert missing == set()


def test_every_module_says_what_it_is_for() -> None:
    undocumented = [
        name
        for name, path in MODULES.items()
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert undocumented == []
