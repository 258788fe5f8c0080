"""How large what is measured is: for a card, for a quick look, and for a dry run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.gpu_check.figures import DRY_RUN
from engine.config import ModelConfig
from tiering.memory.layout import KVLayout

BLOCK_SIZE = 16
_LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=32_768,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
)
_TINY_LLAMA = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=101,
    hidden_size=64,
    intermediate_size=96,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)


@dataclass(frozen=True, slots=True)
class Extension:
    """``num_new`` tokens behind a context of one sequence."""

    num_new: int
    context: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What is generated: ``prompt_len`` random tokens a request, then ``output_len`` tokens of answer.

    ``runs``: that are timed, after one that is not.
    """

    prompt_len: int
    output_len: int
    batches: tuple[int, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of everything. ``repeats``: single measurements of which the median is told."""

    name: str
    model: ModelConfig
    repeats: int
    copy_bytes: int
    matmul_size: int
    pinned_bytes: int
    decodes: tuple[tuple[int, int], ...]  # (sequences, tokens of each)
    extensions: tuple[Extension, ...]
    num_layers_measured: int  # of one pool, at least
    swap_blocks: int
    step_tokens: int  # the most that one step of the engine computes
    workload: Workload
    steps: int  # of a decode whose time is taken
    rounds: int  # of such steps alone and beside swaps
    context: int  # of the sequences that decode beside swaps
    judged_decode: tuple[int, int]
    judged_extension: Extension
    judged_batch: int
    swept_decodes: tuple[tuple[int, int], ...]
    swept_decode_tiles: tuple[tuple[int, ...], ...]  # tokens, warps, stages, programs on a multiprocessor
    swept_extensions: tuple[Extension, ...]
    swept_extend_tiles: tuple[tuple[int, ...], ...]  # rows, tokens, warps, stages

    def layout(self, dtype_bytes: int) -> KVLayout:
        """Of a KV block of this model."""
        model = self.model
        return KVLayout(model.num_layers, model.num_kv_heads, BLOCK_SIZE, model.head_dim, dtype_bytes)


FULL = Scale(
    name="full",
    model=_LLAMA_8B,
    repeats=30,
    copy_bytes=2 * 2**30,
    matmul_size=8192,
    pinned_bytes=2**30,
    decodes=tuple((batch, context) for batch in (1, 16, 64, 256) for context in (1024, 4096, 8192)),
    extensions=(
        Extension(512, 0), Extension(2048, 0), Extension(8192, 0),
        Extension(512, 16_384), Extension(2048, 16_384), Extension(8192, 16_384),
    ),
    num_layers_measured=8,
    swap_blocks=1024,
    step_tokens=8192,
    workload=Workload(prompt_len=512, output_len=128, batches=(1, 16, 64, 256), runs=3),
    steps=60,
    rounds=3,
    context=1024,
    judged_decode=(64, 4096),
    judged_extension=Extension(8192, 0),
    judged_batch=64,
    swept_decodes=((1, 8192), (16, 8192), (64, 4096)),
    swept_decode_tiles=((32, 64, 128), (4, 8), (2, 3, 4), (1, 2, 4)),
    swept_extensions=(Extension(2048, 0), Extension(8192, 0)),
    swept_extend_tiles=((64, 128, 256), (32, 64, 128), (4, 8), (2, 3)),
)  # fmt: skip
QUICK = replace(
    FULL,
    name="quick",
    repeats=10,
    decodes=((1, 4096), (64, 4096), (256, 1024)),
    extensions=(Extension(2048, 0), Extension(8192, 0)),
    workload=replace(FULL.workload, output_len=64, batches=(1, 64), runs=2),
    steps=30,
)
DRY = Scale(
    name=DRY_RUN,
    model=_TINY_LLAMA,
    repeats=1,
    copy_bytes=2**16,
    matmul_size=16,
    pinned_bytes=2**16,
    decodes=((2, 20),),
    extensions=(Extension(20, 7),),
    num_layers_measured=2,
    swap_blocks=8,
    step_tokens=16,
    workload=Workload(prompt_len=9, output_len=3, batches=(2,), runs=2),
    steps=2,
    rounds=1,
    context=9,
    judged_decode=(2, 20),
    judged_extension=Extension(20, 7),
    judged_batch=2,
    swept_decodes=((2, 20),),
    swept_decode_tiles=((16,), (4,), (2,), (1, 2)),
    swept_extensions=(Extension(20, 7),),
    swept_extend_tiles=((16,), (16, 32), (4,), (2,)),
)
SCALES = {scale.name: scale for scale in (FULL, QUICK, DRY)}
