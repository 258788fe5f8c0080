"""Plans such as a scheduler makes, over lives of sequences that hypothesis chooses, for two runners at once.

Each runner has a pool of its own; what a plan writes, both write. Blocks that nobody has are NaN in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from engine.messages import SamplingParams
from engine.schedule import Executor, SampleSpec, ScheduledChunk, SchedulerOutput, ScoreSpec
from tiering.types import BlockCopy, BlockId

PARAMS = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 7},
    {"temperature": 1.0, "top_p": 0.7, "min_p": 0.05},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {5: 2.0}},
)


@dataclass(slots=True)
class Life:
    """A sequence: its tokens, of which the first ``num_computed`` are in the blocks of ``table``."""

    name: str
    tokens: list[int]
    params: SamplingParams
    seed: int
    table: list[int] = field(default_factory=list)
    num_computed: int = 0


class Lives:
    """Sequences over the blocks of both pools. Each ``step`` makes a plan and has both execute it."""

    def __init__(
        self,
        data: st.DataObject,
        runners: tuple[Executor, Executor],
        pools: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        self._draw = data.draw
        self._runners = runners
        self._pools = pools
        self._block_size = pools[0].shape[4]
        self._references = [0] * pools[0].shape[0]
        self._lives: dict[str, Life] = {}
        self._num_born = 0

    def step(self, max_num_seqs: int, max_num_rows: int) -> int:
        """Let something become of the sequences, then compute some of them; returns how many rows."""
        for name in list(self._lives):
            self._befall(self._lives[name])
        while len(self._lives) < max_num_seqs and self._draw(st.booleans()):
            self._bear()
        copies: list[BlockCopy] = []
        chunks: list[ScheduledChunk] = []
        only_decodes = self._draw(st.booleans())
        for life in self._lives.values():
            room = max_num_rows - sum(len(chunk.token_ids) for chunk in chunks)
            if only_decodes and len(life.tokens) - life.num_computed > 1:
                continue
            if room and self._draw(st.integers(0, 4)):
                chunks.append(self._chunk(life, room, copies))
        chunks.sort(key=lambda chunk: len(chunk.token_ids) != 1)
        plan = SchedulerOutput(tuple(chunks), tuple(copies))
        if chunks:
            self._execute(plan)
        return plan.num_tokens

    def _execute(self, plan: SchedulerOutput) -> None:
        expected, found = (runner.execute(plan) for runner in self._runners)
        assert found == expected
        assert torch.equal(*(pool.nan_to_num(7.0) for pool in self._pools)), "other things were stored"
        for chunk in plan.chunks:
            self._lives[chunk.sequence_id].num_computed += len(chunk.token_ids)
        for sample in found.samples:
            assert sample.tokens
            self._lives[sample.sequence_id].tokens.append(sample.tokens[0].token_id)

    # ---- what becomes of a sequence ------------------------------------------------------------

    def _bear(self) -> None:
        self._num_born += 1
        name = f"s{self._num_born}"
        length = self._draw(st.one_of(st.just(1), st.integers(2, 40)))
        tokens = [(7 * self._num_born + 3 * index) % 97 + 3 for index in range(length)]
        params = SamplingParams(max_tokens=9, seed=0, **self._draw(st.sampled_from(PARAMS)))
        self._lives[name] = Life(name, tokens, params, self._draw(st.integers(0, 2**63 - 1)))

    def _befall(self, life: Life) -> None:
        match self._draw(st.sampled_from((*["nothing"] * 5, "end", "preempt", "exchange", "fork"))):
            case "end":
                self._release(life)
                del self._lives[life.name]
            case "preempt":
                self._release(life)
            case "exchange" if life.num_computed:
                self._exchange(life, self._draw(st.integers(0, (life.num_computed - 1) // self._block_size)))
            case "fork" if life.table and len(self._lives) < 5:
                self._num_born += 1
                twin = Life(f"s{self._num_born}", life.tokens.copy(), life.params, life.seed + 1)
                twin.table, twin.num_computed = life.table.copy(), life.num_computed
                for block in twin.table:
                    self._references[block] += 1
                self._lives[twin.name] = twin

    def _exchange(self, life: Life, index: int) -> None:
        """Another block with the same content takes a block's place, in the same table."""
        old, new = life.table[index], self._take()
        for pool in self._pools:
            pool[new] = pool[old]
        life.table[index] = new
        self._give_up(old)

    def _release(self, life: Life) -> None:
        for block in life.table:
            self._give_up(block)
        life.table, life.num_computed = [], 0

    def _take(self) -> int:
        block = self._references.index(0)
        self._references[block] = 1
        return block

    def _give_up(self, block: int) -> None:
        self._references[block] -= 1
        if not self._references[block]:
            for pool in self._pools:
                pool[block] = math.nan

    # ---- plans ---------------------------------------------------------------------------------

    def _chunk(self, life: Life, room: int, copies: list[BlockCopy]) -> ScheduledChunk:
        start, missing = life.num_computed, len(life.tokens) - life.num_computed
        stop = start + min(room, missing, self._draw(st.one_of(st.just(missing), st.integers(1, missing))))
        if life.table and start % self._block_size:
            self._copy_on_write(life, start // self._block_size, copies)
        while len(life.table) * self._block_size < stop:
            life.table.append(self._take())
        sample = self._ask(life) if stop == len(life.tokens) else None
        score = None
        if stop - start > 1 and not self._draw(st.integers(0, 4)):
            score = ScoreSpec(start, life.tokens[start + 1 : stop], 2)
        return ScheduledChunk(life.name, life.tokens[start:stop], start, life.table, sample, score)

    def _copy_on_write(self, life: Life, index: int, copies: list[BlockCopy]) -> None:
        source = life.table[index]
        if self._references[source] > 1:
            target = life.table[index] = self._take()
            copies.append(BlockCopy(BlockId(source), BlockId(target)))
            self._references[source] -= 1

    def _ask(self, life: Life) -> SampleSpec:
        count = 1 if life.num_computed else self._draw(st.sampled_from((1, 3)))
        seeds = tuple(life.seed + index for index in range(count))
        return SampleSpec(life.params, seeds, len(life.tokens), life.tokens[:1], life.tokens[1:], ())
