"""Which parts a device gets, and a whole load as for a GPU, on CPU tensors with kernels interpreted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.cpu import CpuAttention
from engine.attention.reference import ReferenceAttention
from engine.attention.triton.backend import TritonAttention
from engine.config import ConfigError, EngineConfig, MemorySize
from engine.execution import parts, runner
from engine.execution.gpu_runner import GpuRunner
from engine.execution.hardware import Hardware
from engine.execution.model_runner import ModelRunner
from engine.execution.parts import Parts, prompt_lengths
from engine.execution.runner import LoadedRunner, load_runner
from engine.fused.ops import TritonOps
from engine.messages import SamplingParams
from engine.models.layers import TorchOps
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput, StepOutput
from tests.support.repeated_graphs import RepeatingRecorder
from tests.support.tiny_models import make_model, oracle_greedy, random_tokens
from tests.support.tiny_tokenizers import byte_level, save

CPU, GPU = (Hardware(torch.device(name), torch.float32, 2) for name in ("cpu", "cuda"))
POOL = torch.zeros((4, 1, 2, 2, 16, 16))
SHAPE = AttentionShape(4, 2, 16)
ODD = AttentionShape(4, 2, 40)


@pytest.fixture
def multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(multi_processor_count=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def made(hardware: Hardware, **settings: object) -> Parts:
    fields = {"model": "", "max_num_seqs": 2, "max_num_batched_tokens": 8, **settings}
    return Parts(hardware, EngineConfig(**fields))  # type: ignore[arg-type]


@pytest.mark.usefixtures("multiprocessors")
@pytest.mark.parametrize("deterministic", [False, True])
def test_each_device_gets_its_parts(deterministic: bool) -> None:
    on_cpu, on_gpu = (made(hardware, deterministic=deterministic) for hardware in (CPU, GPU))
    assert isinstance(on_cpu.ops(), TorchOps) and isinstance(on_gpu.ops(), TritonOps)
    assert isinstance(on_cpu.attention(POOL, SHAPE), CpuAttention)
    attention = on_gpu.attention(POOL, SHAPE)
    assert isinstance(attention, TritonAttention)
    assert ("invariant" in attention.name) is deterministic


@pytest.mark.usefixtures("multiprocessors")
def test_heads_that_no_kernel_knows() -> None:
    pool = torch.zeros((4, 1, 2, 2, 16, 40))
    assert isinstance(made(GPU).attention(pool, ODD), ReferenceAttention)
    with pytest.raises(ConfigError, match=r"--deterministic .* 40 .*\.$"):
        made(GPU, deterministic=True).attention(pool, ODD)


def test_prompts_to_warm_up_with() -> None:
    assert prompt_lengths(512, 4096) == (2, 16, 128, 512)
    assert prompt_lengths(8192, 100) == (2, 16, 100)
    assert prompt_lengths(1, 1) == (2,)


# ---- a whole load ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_model(num_hidden_layers=1).save_pretrained(path)
    save(byte_level(), path)
    return path


class Use:
    def __init__(self, device: torch.device) -> None:
        pass


def load(directory: Path, monkeypatch: pytest.MonkeyPatch, recorder: object) -> LoadedRunner:
    """As on a GPU, of which only the memory is that of a CPU."""
    monkeypatch.setattr(runner, "choose_hardware", lambda config: CPU)
    monkeypatch.setattr(Parts, "_is_gpu", True)
    monkeypatch.setattr(parts, "CudaRecorder", lambda device: recorder)
    monkeypatch.setattr(parts, "MemoryUse", Use)
    config = EngineConfig(
        model=str(directory),
        max_num_seqs=2,
        max_num_batched_tokens=9,
        device_kv=MemorySize(num_bytes=2**20),
    )
    return load_runner(config, lambda *_: None)


@pytest.mark.usefixtures("multiprocessors")
def test_what_is_loaded_for_a_gpu_steps_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = RepeatingRecorder((), is_strict=True)
    loaded = load(directory, monkeypatch, recorder)
    assert isinstance(loaded.runner, GpuRunner)
    assert loaded.info.attention_backend == "triton" and loaded.info.notes == ()
    assert len(recorder.graphs) == 2
    prompt = random_tokens(9)
    spec = SampleSpec(SamplingParams(max_tokens=3, seed=0, temperature=0.0), (0,), 9, prompt, (), ())
    ids, start = list(prompt), 0
    for _ in range(3):
        ask = msgspec.structs.replace(spec, position=len(ids))
        chunk = ScheduledChunk("r", ids[start:], start, (3,), ask)
        start = len(ids)
        ids.append(loaded.runner.execute(SchedulerOutput((chunk,))).samples[0].tokens[0].token_id)
    assert ids[9:] == oracle_greedy(make_model(num_hidden_layers=1), prompt, 3)
    assert recorder.num_replays == 2


@pytest.mark.usefixtures("multiprocessors")
def test_the_longest_prompt_comes_last(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture gives back what no graph holds, and would leave it to the first request to take it anew."""
    steps: list[tuple[int, bool]] = []
    execute = GpuRunner.execute

    def noted(self: GpuRunner, plan: SchedulerOutput) -> StepOutput:
        steps.append((plan.num_tokens, self.graphs is not None))
        return execute(self, plan)

    monkeypatch.setattr(GpuRunner, "execute", noted)
    load(directory, monkeypatch, RepeatingRecorder((), is_strict=False))
    assert (9, False) in steps and steps[-1] == (9, True)


@pytest.mark.usefixtures("multiprocessors")
def test_graphs_that_cannot_be_captured_cost_speed_only(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def record(self, work: object) -> None:
            raise RuntimeError("out of memory")

    loaded = load(directory, monkeypatch, Refusing())
    assert isinstance(loaded.runner, GpuRunner) and loaded.runner.graphs is None
    (note,) = loaded.info.notes
    assert "CUDA graphs" in note and "memory" in note and note.endswith(".")


@pytest.mark.usefixtures("multiprocessors")
@pytest.mark.parametrize("is_captured", [False, True])
def test_steps_that_find_no_memory_are_the_settings_fault(
    directory: Path, monkeypatch: pytest.MonkeyPatch, is_captured: bool
) -> None:
    execute = GpuRunner.execute

    def exhausted(self: GpuRunner, plan: SchedulerOutput) -> StepOutput:
        if plan.num_tokens == 9 and (self.graphs is not None) is is_captured:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return execute(self, plan)

    monkeypatch.setattr(GpuRunner, "execute", exhausted)
    with pytest.raises(ConfigError, match=r"--device-kv, --max-num-batched-tokens .*\.$"):
        load(directory, monkeypatch, RepeatingRecorder((), is_strict=False))


def test_a_cpu_gets_the_plain_runner(directory: Path) -> None:
    config = EngineConfig(
        model=str(directory), device="cpu", dtype="float32", device_kv=MemorySize(num_bytes=2**21)
    )
    assert isinstance(load_runner(config, lambda *_: None).runner, ModelRunner)
