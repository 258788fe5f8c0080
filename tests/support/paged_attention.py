"""Ragged paged batches for tests of attention, and what attention means, in float64 over plain arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionShape

NUM_LAYERS = 2


@dataclass(frozen=True)
class Batch:
    """A pool whose context is in place, this step's rows, and the answer.

    ``spans`` are (context length, rows of this step) of each sequence, ``expected`` is float64.
    """

    shape: AttentionShape
    spans: tuple[tuple[int, int], ...]
    pool: torch.Tensor  # every slot that is not context is NaN
    tables: tuple[tuple[int, ...], ...]
    qkv: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    expected: torch.Tensor  # [T, Hq * D]
    keys: torch.Tensor  # [T, Hkv, D], rotated, as they must be stored
    values: torch.Tensor  # [T, Hkv, D]

    @property
    def block_size(self) -> int:
        return self.pool.shape[4]

    @property
    def metadata(self) -> AttentionMetadata:
        found = metadata(self.spans, self.tables, self.block_size)
        tensors = {
            field.name: getattr(found, field.name).to(self.pool.device)
            for field in fields(found)
            if isinstance(getattr(found, field.name), torch.Tensor)
        }
        return replace(found, **tensors)

    def to(self, device: str) -> Batch:
        """The same on a device."""
        names = ("pool", "qkv", "cos", "sin", "expected", "keys", "values")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def run(self, backend: AttentionBackend, layer: int = 1) -> torch.Tensor:
        """One step through a backend over this batch's pool."""
        backend.begin_step(self.metadata, self.cos, self.sin)
        return backend.forward(layer, self.qkv)

    def stored(self, layer: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V ``[T, Hkv, D]`` of this step's rows, read where the layout says they are."""
        slots = self.metadata.slot_mapping.tolist()
        places = [divmod(slot, self.block_size) for slot in slots]
        return tuple(  # type: ignore[return-value]
            torch.stack([self.pool[block, layer, part, :, offset] for block, offset in places])
            for part in (0, 1)
        )

    def permuted(self, seed: int) -> Batch:
        """The same sequences with their blocks elsewhere in the pool."""
        moved = torch.randperm(self.pool.shape[0], generator=torch.Generator().manual_seed(seed)).tolist()
        pool = torch.empty_like(self.pool)
        pool[moved] = self.pool
        tables = tuple(tuple(moved[block] for block in table) for table in self.tables)
        return replace(self, pool=pool, tables=tables)

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """A batch of one sequence as consecutive steps of ``sizes`` rows over one copy of the pool."""
        (context, rows), pool, steps, done = self.spans[0], self.pool.clone(), [], 0
        assert len(self.spans) == 1 and sum(sizes) == rows
        for size in sizes:
            rows_of_step = slice(done, done + size)
            steps.append(
                replace(
                    self,
                    spans=((context + done, size),),
                    pool=pool,
                    qkv=self.qkv[rows_of_step],
                    cos=self.cos[rows_of_step],
                    sin=self.sin[rows_of_step],
                )
            )
            done += size
        return steps


def metadata(
    spans: Sequence[tuple[int, int]], tables: Sequence[Sequence[int]], block_size: int
) -> AttentionMetadata:
    def ints(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    starts, slots = [0], []
    for (context, rows), table in zip(spans, tables, strict=True):
        starts.append(starts[-1] + rows)
        positions = range(context, context + rows)
        slots += [table[p // block_size] * block_size + p % block_size for p in positions]
    width = max(len(table) for table in tables)
    return AttentionMetadata(
        query_start=ints(starts),
        context_start=ints([context for context, _ in spans]),
        seq_lens=ints([context + rows for context, rows in spans]),
        block_tables=ints([[*table, *[0] * (width - len(table))] for table in tables]),
        slot_mapping=ints(slots),
        num_decodes=len(list(itertools.takewhile(lambda span: span[1] == 1, spans))),
    )


def make_batch(
    spans: Sequence[tuple[int, int]],
    shape: AttentionShape,
    dtype: torch.dtype = torch.float32,
    block_size: int = 16,
    seed: int = 0,
) -> Batch:
    """Random sequences in shuffled blocks. Block 0, which pads the tables, belongs to nobody."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-(context + rows) // block_size) for context, rows in spans]
    num_blocks = 1 + sum(needed) + 2
    free = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    tables = tuple(tuple(free.pop() for _ in range(count)) for count in needed)
    dims = (num_blocks, NUM_LAYERS, 2, shape.num_kv_heads, block_size, shape.head_dim)
    batch = Batch(shape, tuple(spans), torch.full(dims, math.nan, dtype=dtype), tables, *[torch.empty(0)] * 6)
    parts = [
        _sequence(batch, context, rows, table, generator)
        for (context, rows), table in zip(spans, tables, strict=True)
    ]
    qkv, cos, sin, expected, keys, values = (torch.cat(column) for column in zip(*parts, strict=True))
    return replace(batch, qkv=qkv, cos=cos, sin=sin, expected=expected, keys=keys, values=values)


def _sequence(
    batch: Batch, context: int, rows: int, table: Sequence[int], generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    shape, dtype, length = batch.shape, batch.pool.dtype, context + rows
    qkv = torch.randn((length, shape.qkv_size), generator=generator).to(dtype)
    frequencies = 10000.0 ** -(torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
    angles = torch.outer(torch.arange(length).double(), frequencies)
    cos, sin = angles.cos().float(), angles.sin().float()
    heads = qkv.double().view(length, -1, shape.head_dim)
    sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    query, key, value = heads.split(sizes, dim=1)
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin).to(dtype)
    for position in range(context):
        block, offset = table[position // batch.block_size], position % batch.block_size
        for part, source in ((0, key), (1, value)):
            batch.pool[block, :, part, :, offset] = source[position].to(dtype)
    expected = _attend(query, key.double(), value, shape)[context:].reshape(rows, -1)
    return qkv[context:], cos[context:], sin[context:], expected, key[context:], value[context:].to(dtype)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = heads.chunk(2, dim=-1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([low * c - high * s, high * c + low * s], dim=-1)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    length = len(query)
    out = torch.empty_like(query)
    window = shape.sliding_window or length
    distance = torch.arange(length)[:, None] - torch.arange(length)
    visible = (distance >= 0) & (distance < window)
    for head in range(shape.num_heads):
        kv_head = head // (shape.num_heads // shape.num_kv_heads)
        scores = query[:, head] @ key[:, kv_head].T / math.sqrt(shape.head_dim)
        weights = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=1)
        out[:, head] = weights @ value[:, kv_head]
    return out
