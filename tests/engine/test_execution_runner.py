"""Loading and stepping a whole runner over a tiny model: plans, windows, pools, and the warm-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.attention import cpu_prompt, cpu_rotate
from engine.config import ConfigError, EngineConfig, MemorySize
from engine.execution import hardware
from engine.execution.runner import LoadedRunner, load_runner
from engine.messages import SamplingParams
from engine.packed.products import has_byte_products
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput
from tests.support.tiny_models import make_model, oracle_greedy, random_tokens
from tests.support.tiny_tokenizers import byte_level, save

TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # layers, K and V, heads, head size, float32
WINDOW = 512
PROMPT = random_tokens(40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_model(max_position_embeddings=WINDOW).save_pretrained(path)
    save(byte_level(), path)
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": "T"}))
    return path


def load(model: Path | str, tokens: int = WINDOW, **settings: object) -> LoadedRunner:
    fields = {
        "dtype": "float32",
        "device": "cpu",
        "threads": 2,
        "device_kv": MemorySize(num_bytes=tokens * TOKEN_BYTES),
        **settings,
    }
    return load_runner(EngineConfig(model=str(model), **fields), lambda *_: None)  # type: ignore[arg-type]


def ask(position: int, **params: object) -> SampleSpec:
    fields = {"max_tokens": 5, "seed": 0, "temperature": 0.0, **params}
    made = SamplingParams(**fields)  # type: ignore[arg-type]
    return SampleSpec(made, (made.seed,), position, PROMPT, (), ())


def plan(*chunks: tuple[str, Sequence[int], int, Sequence[int], SampleSpec | None]) -> SchedulerOutput:
    return SchedulerOutput(tuple(ScheduledChunk(*chunk) for chunk in chunks))


# ---- steps -----------------------------------------------------------------------------------------


def test_an_empty_plan_does_nothing(model: Path) -> None:
    assert load(model).runner.execute(SchedulerOutput(())).samples == ()


def test_a_plan_without_samples_still_computes(model: Path) -> None:
    runner = load(model).runner
    assert runner.execute(plan(("a", PROMPT[:30], 0, (3, 1, 5), None))).samples == ()
    output = runner.execute(plan(("a", PROMPT[30:], 30, (3, 1, 5), ask(40))))
    expected = oracle_greedy(make_model(max_position_embeddings=WINDOW), PROMPT, 1)
    assert [(sample.sequence_id, sample.tokens[0].token_id) for sample in output.samples] == [
        ("a", expected[0])
    ]


def test_samples_come_in_the_order_of_the_chunks_that_asked(model: Path) -> None:
    runner = load(model).runner
    output = runner.execute(
        plan(
            ("a", PROMPT, 0, (1, 2, 3), ask(40, logprobs=2)),
            ("b", PROMPT, 0, (4, 5, 6), None),
            ("c", PROMPT[:9], 0, (7,), ask(9)),
        )
    )
    assert [sample.sequence_id for sample in output.samples] == ["a", "c"]
    first, last = (sample.tokens[0] for sample in output.samples)
    assert first.logprobs is not None and first.logprobs.top[0][0] == first.token_id
    assert last.logprobs is None
    oracle = make_model(max_position_embeddings=WINDOW)
    assert first.token_id == oracle_greedy(oracle, PROMPT, 1)[0]
    assert last.token_id == oracle_greedy(oracle, PROMPT[:9], 1)[0]


def test_blocks_shared_by_two_sequences_are_read_by_both(model: Path) -> None:
    """A prefix hit: the second sequence computes its own tail over the first one's blocks."""
    runner = load(model).runner
    runner.execute(plan(("a", PROMPT[:32], 0, (4, 9), None)))
    other = random_tokens(8, seed=5)
    output = runner.execute(
        plan(("a", PROMPT[32:], 32, (4, 9, 2), ask(40)), ("b", other, 32, (4, 9, 7), ask(40)))
    )
    oracle = make_model(max_position_embeddings=WINDOW)
    expected = [oracle_greedy(oracle, tokens, 1)[0] for tokens in (PROMPT, PROMPT[:32] + other)]
    assert [sample.tokens[0].token_id for sample in output.samples] == expected


# ---- what was loaded -------------------------------------------------------------------------------


def test_info(model: Path) -> None:
    info = load(model, tokens=WINDOW + 37).info
    oracle = make_model(max_position_embeddings=WINDOW)
    assert (info.model_name, info.architecture) == ("tiny", "LlamaForCausalLM")
    assert (info.device, info.dtype, info.attention_backend) == ("cpu", "float32", "cpu-numba")
    assert info.num_parameters == oracle.num_parameters()
    assert info.weight_bytes == 4 * info.num_parameters
    assert (info.block_size, info.num_blocks, info.max_model_len) == (16, 34, WINDOW)
    assert info.kv_bytes == 34 * 16 * TOKEN_BYTES
    assert (info.tokenizer_dir, info.chat_template, info.eos_token) == (str(model), "T", "</s>")
    assert (info.vocab_size, info.stop_token_ids, info.threads, info.notes) == (101, (2,), 2, ())


def test_loading_reports_progress(model: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    config = EngineConfig(
        model=str(model), device="cpu", dtype="float32", device_kv=MemorySize(num_bytes=2**21)
    )
    load_runner(config, lambda *call: calls.append(call))
    assert calls[-1][1] == calls[-1][2]


def test_the_pool_takes_what_was_asked_for_within_two_percent(model: Path) -> None:
    for num_bytes in (3 * 2**20, 5_000_000, 2**24 + 1):
        info = load(model, device_kv=MemorySize(num_bytes=num_bytes)).info
        assert 0.98 * num_bytes <= info.kv_bytes <= num_bytes


# ---- the window ------------------------------------------------------------------------------------


def test_a_window_that_was_asked_for_must_fit(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"--device-kv holds 304 tokens.*--max-model-len 400.*\.$"):
        load(model, tokens=310, max_model_len=400)
    assert load(model, tokens=400, max_model_len=400).info.max_model_len == 400


def test_a_window_longer_than_the_models(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"--max-model-len 513 .* 512\.$"):
        load(model, max_model_len=513)


def test_the_models_own_window_is_cut_to_the_pool_with_a_note(model: Path) -> None:
    info = load(model, tokens=310).info
    assert (info.max_model_len, info.num_blocks) == (304, 19)
    (note,) = info.notes
    assert "512" in note and "304" in note and note.endswith(".")


def test_a_pool_too_small_for_any_use(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"--device-kv holds only 240 tokens.*too few.*\.$"):
        load(model, tokens=255)
    assert load(model, tokens=255, max_model_len=240).info.max_model_len == 240
    with pytest.raises(ConfigError, match=r"holds 0 tokens"):
        load(model, device_kv=MemorySize(num_bytes=1), max_model_len=16)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_the_shortest_windows_load(model: Path, window: int) -> None:
    assert load(model, max_model_len=window).info.max_model_len == window


def test_more_memory_than_there_is(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "device_memory", lambda device: hardware.DeviceMemory(2**30, 2**20))
    with pytest.raises(ConfigError, match=r"--device-kv asks for .*\.$"):
        load(model, device_kv=MemorySize(fraction=0.5))


def test_another_block_size(model: Path) -> None:
    loaded = load(model, block_size=32)
    assert (loaded.info.num_blocks, loaded.info.block_size) == (16, 32)
    output = loaded.runner.execute(plan(("a", PROMPT, 0, (9, 3), ask(40))))
    expected = oracle_greedy(make_model(max_position_embeddings=WINDOW), PROMPT, 1)
    assert output.samples[0].tokens[0].token_id == expected[0]


# ---- quantized weights -----------------------------------------------------------------------------


def load_builtin(dtype: str, deterministic: bool = True) -> LoadedRunner:
    pool = MemorySize(num_bytes=32 * 2**20)
    return load("", device_kv=pool, max_model_len=256, dtype=dtype, deterministic=deterministic, threads=1)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_deterministic_steps_of_any_size_read_quantized_weights(dtype: str) -> None:
    loaded, tokens, blocks = load_builtin(dtype), random_tokens(150), tuple(range(10))
    dense_bytes = loaded.info.num_parameters * loaded.pool.dtype.itemsize
    assert loaded.info.weight_bytes < dense_bytes, "layers are in memory once"

    def first_token(sizes: Sequence[int]) -> tuple[object, torch.Tensor]:
        loaded.pool.fill_(0.0)
        start = 0
        for size in sizes:
            end = start + size
            spec = ask(end, logprobs=5) if end == len(tokens) else None
            output = loaded.runner.execute(plan(("a", tokens[start:end], start, blocks, spec)))
            start = end
        return output.samples, loaded.pool.clone()

    whole, kv = first_token([150])
    for sizes in ([1] * 150, [16, 100, 1, 33]):
        found, found_kv = first_token(sizes)
        assert found == whole
        assert torch.equal(found_kv, kv)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_fingerprint_tells_products_apart(deterministic: bool) -> None:
    """K and V of rounded inputs are not for who wants float32."""
    auto, again, float32 = (load_builtin(dtype, deterministic) for dtype in ("auto", "auto", "float32"))
    assert auto.fingerprint == again.fingerprint
    differ = has_byte_products() or auto.pool.dtype != float32.pool.dtype
    assert (auto.fingerprint != float32.fingerprint) == differ


def test_numba_has_as_many_threads_as_were_asked_for() -> None:
    """It takes their number as it is loaded. If that is another, the first kernel to be compiled fails."""
    script = (
        "from engine.config import EngineConfig\n"
        "from engine.execution.runner import load_runner\n"
        "load_runner(EngineConfig(model='', device='cpu', threads=1, max_model_len=256), lambda *_: None)\n"
        "import numba; print(numba.config.NUMBA_NUM_THREADS)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_NUM_THREADS"}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.split() == ["1"]


# ---- the rest --------------------------------------------------------------------------------------


def test_dummy_weights_from_a_config_and_a_tokenizer(model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((model / name).read_text())
    drawn = [
        load(tmp_path, load_format="dummy", seed=seed)
        .runner.execute(plan(("a", PROMPT, 0, (1, 2, 3), ask(40, logprobs=5))))
        .samples[0]
        .tokens[0]
        .logprobs
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_loaded_runner_compiles_nothing_more(model: Path) -> None:
    """Neither batch shapes nor the real model's arrays are of types that the warm-up did not see."""
    runner = load(model).runner
    kernels = (cpu_rotate.rotate_and_store, cpu_prompt.attend)
    compiled = [len(kernel.signatures) for kernel in kernels]  # type: ignore[attr-defined]
    runner.execute(plan(*[(f"r{i}", PROMPT, 0, (3 * i, 3 * i + 1, 3 * i + 2), None) for i in range(5)]))
    runner.execute(
        plan(("r0", (5,), 40, (0, 1, 2), ask(41, temperature=1.0)), ("r1", (6, 7), 40, (3, 4, 5), None))
    )
    runner.execute(plan(("r0", (5,), 41, (0, 1, 2), ask(42))))
    assert [len(kernel.signatures) for kernel in kernels] == compiled  # type: ignore[attr-defined]
