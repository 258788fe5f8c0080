"""What steps take of a GPU's memory beside weights and KV pool, known before the pool is made. Pure.

An upper bound, in which nothing is freed within a step: the allocator keeps what it was given in pieces that
need not fit the next tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import ModelConfig

_FLOAT_BYTES = 4
_SAMPLER_BYTES = 24  # a logit, where torch draws: normalized, sorted with its indices, summed up
_FURTHER_BYTES = 2**30  # workspaces of libraries, binaries of kernels, block tables, partial results


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The most that a step may have, and ``window``, the tokens of the longest sequence."""

    max_num_rows: int
    max_num_seqs: int
    window: int


def step_bytes(model: ModelConfig, sizes: StepSizes, element_bytes: int) -> int:
    """Bytes that steps need, those in CUDA graphs, whose memory is their own, included."""
    heads = 3 * model.num_heads + 2 * model.num_kv_heads  # Q, K, V, Q rotated, and what is attended
    of_layer = 3 * model.hidden_size + 3 * model.intermediate_size + heads * model.head_dim
    of_row = 2 * _FLOAT_BYTES * model.hidden_size + element_bytes * of_layer
    of_logit = _FLOAT_BYTES + 2 * (element_bytes + _FLOAT_BYTES) + _SAMPLER_BYTES
    return (
        (sizes.max_num_rows + sizes.max_num_seqs) * of_row
        + sizes.max_num_seqs * model.vocab_size * of_logit
        + sizes.window * model.head_dim * _FLOAT_BYTES  # cosines and sines
        + _FURTHER_BYTES
    )
