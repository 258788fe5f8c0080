"""Which servers can be measured here. Blocks: while one is tried, or the model written in another form."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.cpu_engine import systems
from benchmarks.cpu_engine.servers import running
from benchmarks.cpu_engine.systems import Setting, System
from engine.loading.checkpoint import Checkpoint, open_checkpoint
from engine.loading.shapes import tensor_shapes
from engine.loading.tokenizer import prepare_tokenizer
from loadtest.measuring.server_process import ServerProcessError

Missing = dict[str, str]
"""Why a server is not measured, by its name."""
_LONG_PROMPT = "tide " * 128
_TRIAL_LOG = "trial.log"
_BUILT_FOR = re.compile(r"system_info:.*?\| CPU : (.*)")
_FEATURE = re.compile(r"(\w+) = (\d+)")
_NOT_INSTALLED = "not installed; docs/performance.md says how to get it"


def find_systems(
    setting: Setting, llama_server: str, directory: Path, say: Callable[[str], None]
) -> tuple[list[System], Missing]:
    """tidegate first. Each has been started once, so that what is in caches then is there for all.

    ``directory`` is for what a peer needs on disk, as long as it is measured. Raises ServerProcessError and
    OSError if tidegate itself cannot be used.
    """
    ours, missing = systems.tidegate(setting), Missing()
    _try_out(ours, directory)
    found = [ours]
    for name, peer in _candidates(setting, llama_server, directory).items():
        usable = peer and without_fault(peer, directory, say)
        if isinstance(usable, System):
            found.append(usable)
        else:
            missing[name] = usable or _NOT_INSTALLED
    return found, missing


def _candidates(setting: Setting, llama_server: str, directory: Path) -> dict[str, System | None]:
    """None for what is not installed."""
    llama, vllm = systems.find_llama_server(llama_server), shutil.which("vllm")
    found: dict[str, System | None] = {"llama-server": None, "vLLM": None}
    if llama is not None:
        found["llama-server"] = systems.llama_server(setting, llama)
    if vllm is not None:
        model = write_hf_directory(open_checkpoint("", "auto", 0), directory / "model")
        found["vLLM"] = systems.vllm(setting, vllm, model)
    return found


def without_fault(system: System, directory: Path, say: Callable[[str], None]) -> System | str:
    """The server as it can be used, or why it cannot.

    Where there is AMX llama.cpp may die of repacked weights; it is then taken without.
    """
    fault = why_unusable(system, directory)
    if fault and system.name == "llama-server" and systems.has_amx():
        say(f"{system.name} cannot be used as it is ({fault}): without repacking")
        system = systems.without_repack(system)
        fault = why_unusable(system, directory)
    return fault or told(system, directory / _TRIAL_LOG)


def told(system: System, log: Path) -> System:
    """With what llama.cpp's log says that it was built for: without wide vectors it is another server."""
    found = _BUILT_FOR.search(log.read_text(errors="replace"))
    if found is None:
        return system
    names = [name for name, value in _FEATURE.findall(found.group(1)) if value != "0"]
    return replace(system, how=f"{system.how}; built for {', '.join(names)}")


def why_unusable(system: System, directory: Path) -> str:
    """Empty if it starts and answers; else what became of it, and the last line of its log."""
    try:
        _try_out(system, directory)
    except (ServerProcessError, OSError) as error:
        first, *_, last = (str(error).splitlines() or [type(error).__name__]) * 2
        return first if first == last else f"{first.partition(' The end of ')[0]} {last.strip()}"
    return ""


def _try_out(system: System, directory: Path) -> None:
    with running(systems.talkative(system), directory / _TRIAL_LOG) as server, server.going():
        server.wait_for_token(_LONG_PROMPT)


def write_hf_directory(checkpoint: Checkpoint, directory: Path) -> Path:
    """The same weights in bfloat16 as a Hugging Face directory, for servers that read nothing else."""
    directory.mkdir()
    tokenizer = prepare_tokenizer(checkpoint).directory
    shutil.copytree(tokenizer, directory, dirs_exist_ok=True)
    weights = {
        name: checkpoint.tensors.load(name).to(torch.bfloat16).contiguous()
        for name in tensor_shapes(checkpoint.config)
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(_hf_config(checkpoint)))
    return directory


def _hf_config(checkpoint: Checkpoint) -> dict[str, object]:
    config = asdict(checkpoint.config)
    names = {
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
    }
    same = (
        "vocab_size", "hidden_size", "intermediate_size", "head_dim", "max_position_embeddings",
        "rms_norm_eps", "rope_theta", "tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id",
    )  # fmt: skip
    return {
        "architectures": [checkpoint.config.architecture],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "eos_token_id": checkpoint.config.eos_token_ids[0],
        **{name: config[ours] for name, ours in names.items()},
        **{name: config[name] for name in same},
    }
