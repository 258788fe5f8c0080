"""Fusing, typing, and the report of progress."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from engine.loading.checkpoint import open_checkpoint
from engine.loading.packed_weights import pack_weights
from engine.loading.weights import load_weights
from engine.models.layers import TorchOps
from tests.support.packed_matrices import write_quantized
from tests.support.tiny_models import CPU, make_model


@pytest.mark.parametrize("shard", ["60KB", "1GB"])
def test_parts_are_fused_in_order(tmp_path: Path, shard: str) -> None:
    model = make_model(attention_bias=True)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    opened = open_checkpoint(str(tmp_path), "auto", 0)
    weights = load_weights(opened.config, opened.tensors, TorchOps(torch.float32), CPU, lambda *_: None)
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    layer = weights.layers[1]
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    weight, bias = layer.qkv.tensors()
    assert torch.equal(weight, torch.cat([part.weight for part in qkv]))
    assert torch.equal(bias, torch.cat([part.bias for part in qkv]))
    (weight,) = layer.gate_up.tensors()
    assert torch.equal(weight, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    assert not any(tensor.requires_grad for tensor in weights.tensors())


def test_norms_stay_float32_and_the_rest_takes_the_dtype(tmp_path: Path) -> None:
    make_model(tie_word_embeddings=True).save_pretrained(tmp_path)
    opened = open_checkpoint(str(tmp_path), "auto", 0)
    weights = load_weights(opened.config, opened.tensors, TorchOps(torch.bfloat16), CPU, lambda *_: None)
    assert [tensor.dtype for tensor in weights.norm.tensors()] == [torch.float32]
    assert [tensor.dtype for tensor in weights.layers[0].down.tensors()] == [torch.bfloat16]
    assert weights.lm_head is not None
    assert [tensor.data_ptr() for tensor in weights.lm_head.tensors()] == [weights.embedding.data_ptr()]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head", [Type.Q8_0, Type.F16])
def test_what_another_decoder_has_is_not_read(tmp_path: Path, tied: bool, head: Type) -> None:
    kinds = {"": Type.Q4_1, "token_embd.weight": head, "output.weight": head}
    path = write_quantized(tmp_path / "m.gguf", make_model(tie_word_embeddings=tied), kinds)
    opened, read = open_checkpoint(str(path), "auto", 0), list[tuple[str, int, int]]()
    config, tensors, ops = opened.config, opened.tensors, TorchOps(torch.float32)
    whole = load_weights(config, tensors, ops, CPU, lambda *_: None)
    packed = pack_weights(config, tensors, lambda *_: None)
    found = load_weights(config, tensors, ops, CPU, lambda *call: read.append(call), beside=packed)
    assert found.layers == ()
    assert (found.lm_head is None) == (head == Type.Q8_0)
    expected = list(dataclasses.replace(whole, layers=()).tensors())
    if head == Type.Q8_0 and not tied:
        del expected[-1]
    assert [tensor.tolist() for tensor in found.tensors()] == [tensor.tolist() for tensor in expected]
    assert len(read) == len(expected) and read[-1][1] == read[-1][2]


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_progress_grows_to_the_total(tmp_path: Path, load_format: str) -> None:
    make_model().save_pretrained(tmp_path, max_shard_size="60KB")
    opened = open_checkpoint(str(tmp_path), load_format, 0)
    calls: list[tuple[str, int, int]] = []
    ops = TorchOps(torch.float32)
    load_weights(opened.config, opened.tensors, ops, CPU, lambda *call: calls.append(call))
    done = [done for _, done, _ in calls]
    totals = {total for _, _, total in calls}
    assert {phase for phase, _, _ in calls} == {"weights"}
    assert done == sorted(set(done))
    assert totals == {done[-1]}
    assert done[-1] == sum(parameter.nbytes for parameter in make_model().parameters())
