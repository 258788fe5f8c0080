"""The decoder by quantized weights gives what torch gives by the same values, and says when there is none."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from engine.config import ConfigError
from engine.execution.batch import build_model_input
from engine.loading.checkpoint import Checkpoint, open_checkpoint
from engine.loading.packed_weights import pack_weights
from engine.models.llama import Decoder, LlamaModel
from engine.packed import llama as packed_llama
from engine.packed.llama import MixedLlama, PackedLlama, PackedSteps, packed_steps
from engine.schedule import SchedulerOutput
from tests.support.packed_matrices import OF_BYTES, write_quantized
from tests.support.tiny_models import CPU, Loaded, make_model, random_tokens

USUAL = {"": Type.Q4_1, "token_embd.weight": Type.Q8_0}
MAX_ROWS = 12


def checkpoint(path: Path, kinds: dict[str, Type], **changes: object) -> Checkpoint:
    return open_checkpoint(str(write_quantized(path / "m.gguf", make_model(**changes), kinds)), "auto", 0)


def packed_model(
    opened: Checkpoint, loaded: Loaded, threads: int = 1, *, of_bytes: bool = False
) -> PackedLlama:
    weights = pack_weights(opened.config, opened.tensors, lambda *_: None)
    assert weights is not None
    return PackedLlama(weights, loaded.model, MAX_ROWS, threads, of_bytes=of_bytes)


def logits(loaded: Loaded, model: Decoder, tokens: list[int], sizes: list[int]) -> torch.Tensor:
    """Of every position, computed in chunks of these sizes."""
    parts = []
    with torch.inference_mode():
        for chunk in loaded.chunks(tokens, sizes):
            inputs = build_model_input(SchedulerOutput((chunk,)), loaded.block_size, CPU)
            parts.append(model.logits(model.hidden(inputs)))
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("kinds", "changes"),
    [
        (USUAL, {"tie_word_embeddings": True}),
        (USUAL | {"output.weight": Type.Q4_0}, {}),
        (USUAL | {"output.weight": Type.Q5_1}, {}),
        ({"": Type.Q4_0, "token_embd.weight": Type.F16}, {"tie_word_embeddings": True}),
        ({"": Type.Q8_0}, {"num_key_value_heads": 4, "num_hidden_layers": 3}),
        ({"": Type.Q4_0}, {"intermediate_size": 160, "sliding_window": None}),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_logits_are_those_of_torch(
    tmp_path: Path, kinds: dict[str, Type], changes: dict[str, Any], threads: int
) -> None:
    changes = {key: value for key, value in changes.items() if value is not None}
    opened = checkpoint(tmp_path, kinds, **changes)
    loaded = Loaded(opened)
    tokens = random_tokens(40)
    exact = loaded.logits(tokens)
    found = logits(loaded, packed_model(opened, loaded, threads), tokens, [12, 1, 1, 7, 12, 7])
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-5 * float(exact.abs().max()))


@pytest.mark.parametrize("of_bytes", OF_BYTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_however_the_prompt_was_chunked(
    tmp_path: Path, dtype: torch.dtype, of_bytes: bool
) -> None:
    """What ``--deterministic`` rests on."""
    opened = checkpoint(tmp_path, USUAL)
    loaded = Loaded(opened, dtype)
    model, tokens = packed_model(opened, loaded, of_bytes=of_bytes), random_tokens(24)
    whole = logits(loaded, model, tokens, [12, 12])
    assert torch.equal(whole, logits(loaded, model, tokens, [1] * 24))
    assert torch.equal(whole, logits(loaded, model, tokens, [5, 7, 3, 9]))


def test_it_needs_no_layers_and_no_head_but_its_own(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, USUAL | {"output.weight": Type.Q8_0})
    loaded = Loaded(opened)
    tokens, model = random_tokens(12), loaded.model
    expected = logits(loaded, packed_model(opened, loaded), tokens, [12])
    packed = pack_weights(opened.config, opened.tensors, lambda *_: None)
    assert packed is not None
    bare_weights = dataclasses.replace(loaded.weights, layers=(), lm_head=None)
    bare = LlamaModel(bare_weights, model.rope, model.attention)
    alone = PackedLlama(packed, bare, MAX_ROWS, 1, of_bytes=False)
    assert torch.equal(logits(loaded, alone, tokens, [12]), expected)
    assert alone.logits(torch.empty(0, 64)).shape == (0, alone.vocab_size)


def test_a_step_that_there_is_no_room_for_is_refused(tmp_path: Path) -> None:
    """Kernels would write past it."""
    opened = checkpoint(tmp_path, USUAL)
    loaded = Loaded(opened)
    with pytest.raises(AssertionError):
        logits(loaded, packed_model(opened, loaded), random_tokens(MAX_ROWS + 1), [MAX_ROWS + 1])


def test_all_steps_are_packed_where_none_has_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_wide, has_bytes, dtype, most in (
        (True, True, "auto", 128),
        (True, True, "float32", 128),
        (False, True, "auto", None),
        (False, True, "float32", 8),
        (False, False, "auto", 8),
    ):
        monkeypatch.setattr(packed_llama, "has_wide_registers", lambda is_wide=is_wide: is_wide)
        monkeypatch.setattr(packed_llama, "has_byte_products", lambda has_bytes=has_bytes: has_bytes)
        of_bytes = has_bytes and dtype == "auto"
        few = packed_steps(dtype, 8, must_be_all=False)
        assert few == PackedSteps(8, True, of_bytes)
        assert packed_steps(dtype, 512, must_be_all=True) == PackedSteps(512, True, of_bytes)
        assert packed_steps(dtype, 512, must_be_all=False) == PackedSteps(most or 512, most is None, of_bytes)


def test_a_mixed_model_takes_torch_for_more_rows(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, USUAL)
    loaded = Loaded(opened)
    packed, tokens = packed_model(opened, loaded), random_tokens(30)
    mixed = MixedLlama(packed, loaded.model, MAX_ROWS)
    sizes = [MAX_ROWS, MAX_ROWS + 1, 1, 4]
    found = logits(loaded, mixed, tokens, sizes)
    bounds = [0, *itertools.accumulate(sizes)]
    by_torch = loaded.logits(tokens, sizes)
    by_packed = logits(loaded, packed, tokens, [12, 12, 1, 1, 4])
    assert torch.equal(found[: bounds[1]], by_packed[: bounds[1]])
    large = slice(bounds[1], bounds[2])
    torch.testing.assert_close(found[large], by_torch[large], rtol=0, atol=1e-4)
    assert not torch.equal(found[large], by_packed[large])
    assert mixed.vocab_size == loaded.model.vocab_size
    assert mixed.logits(torch.empty(0, 64)).shape == (0, 101)


def test_packing_tells_how_far_it_has_come(tmp_path: Path) -> None:
    opened, calls = checkpoint(tmp_path, USUAL), list[tuple[str, int, int]]()
    assert pack_weights(opened.config, opened.tensors, lambda *call: calls.append(call)) is not None
    done = [done for _, done, _ in calls]
    assert {(phase, total) for phase, _, total in calls} == {("quantized weights", done[-1])}
    assert done == sorted(set(done))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_layers": 3}, "lacks 9 weights.*model.layers.2.input_layernorm.weight"),
        ({"num_layers": 1}, "9 weights that this architecture does not use.*model.layers.1."),
        (
            {"intermediate_size": 64},
            "mlp.gate_proj.weight has the shape .96, 64.; the config asks for .64, 64.",
        ),
    ],
)
def test_a_file_that_is_not_as_its_config_says_is_refused(
    tmp_path: Path, change: dict[str, int], named: str
) -> None:
    """An engine that reads quantized weights alone loads no others that would tell."""
    opened = checkpoint(tmp_path, USUAL)
    with pytest.raises(ConfigError, match=named):
        pack_weights(dataclasses.replace(opened.config, **change), opened.tensors, lambda *_: None)


@pytest.mark.parametrize(
    "kinds",
    [
        {"": Type.F16},
        {"": Type.Q5_1},
        USUAL | {"blk.1.attn_k.weight": Type.Q8_0},
        USUAL | {"blk.1.ffn_down.weight": Type.Q8_0},
    ],
)
def test_there_is_none_where_a_matrix_is_of_another_type(tmp_path: Path, kinds: dict[str, Type]) -> None:
    opened = checkpoint(tmp_path, kinds)
    assert pack_weights(opened.config, opened.tensors, lambda *_: None) is None


def test_there_is_none_for_weights_that_are_not_quantized(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    opened = open_checkpoint(str(tmp_path), "auto", 0)
    assert pack_weights(opened.config, opened.tensors, lambda *_: None) is None


def test_more_threads_than_numba_has_do_no_harm(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, USUAL)
    loaded = Loaded(opened)
    tokens = random_tokens(12)
    found = logits(loaded, packed_model(opened, loaded, 2 * numba.config.NUMBA_NUM_THREADS), tokens, [12])
    assert torch.equal(found, logits(loaded, packed_model(opened, loaded), tokens, [12]))
