"""A step's plan as tensors: ragged rows, their slots in the pool, and the padded block tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.base import AttentionMetadata
from engine.models.llama import ModelInput
from engine.schedule import ScheduledChunk, SchedulerOutput


def build_model_input(plan: SchedulerOutput, block_size: int, device: torch.device) -> ModelInput:
    """Tensors for one forward over the chunks of a plan, in their order. The plan must not be empty."""
    chunks = plan.chunks
    lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int32)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int32)
    query_start = np.zeros(len(chunks) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start[1:])
    sequence = np.repeat(np.arange(len(chunks)), lengths)
    positions = np.arange(query_start[-1]) - query_start[sequence] + starts[sequence]
    tables = _padded_tables(chunks, block_size)
    slots = tables[sequence, positions // block_size] * block_size + positions % block_size
    sampled = [index for index, chunk in enumerate(chunks) if chunk.sample is not None]

    def tensor(values: npt.NDArray[np.generic], dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    token_ids = np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64)
    return ModelInput(
        token_ids=tensor(token_ids, torch.int64),
        positions=tensor(positions, torch.int64),
        logit_rows=tensor(query_start[1:][sampled] - 1, torch.int64),
        attention=AttentionMetadata(
            query_start=tensor(query_start, torch.int32),
            context_start=tensor(starts, torch.int32),
            seq_lens=tensor(starts + lengths, torch.int32),
            block_tables=tensor(tables, torch.int32),
            slot_mapping=tensor(slots, torch.int32),
            num_decodes=int(np.logical_and.accumulate(lengths == 1).sum()),
        ),
    )


def _padded_tables(chunks: Sequence[ScheduledChunk], block_size: int) -> npt.NDArray[np.int64]:
    """Block tables ``[B, max_blocks]``, cut to what the chunks reach and padded with block 0."""
    used = [-(-(chunk.start + len(chunk.token_ids)) // block_size) for chunk in chunks]
    tables = np.zeros((len(chunks), max(used)), dtype=np.int64)
    for row, (chunk, count) in enumerate(zip(chunks, used, strict=True)):
        tables[row, :count] = chunk.block_table[:count]
    return tables
