"""Tenants that send requests to a scheduler as fast as it takes them, and what each of them was served.

A step is a step: no model and no clock but its number. What is served is counted here from plans and
deltas, apart from the scheduler's own counters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.messages import AddRequest, SamplingParams
from engine.schedule import Sample, SampledToken, SchedulerOutput, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.policies.eviction import LruEviction
from tiering.tiers import Tiers

BLOCK_SIZE = 16


@dataclass(slots=True, kw_only=True)
class Client:
    """Keeps ``in_flight`` requests of one kind in the house, up to ``total`` of them."""

    tenant: str
    in_flight: int
    prompt: int
    output: int
    weight: float = 1.0
    priority: int = 0
    total: int = 10**9
    num_sent: int = 0
    live: set[str] = field(default_factory=set)


class Crowd:
    """A scheduler with room for ``num_seqs`` sequences, and for ``num_tokens`` tokens of KV."""

    def __init__(
        self, *clients: Client, num_seqs: int = 8, step_tokens: int = 64, num_tokens: int = 10**6,
        window: int = 2048,
    ) -> None:  # fmt: skip
        self.clients = list(clients)
        blocks = BlockManager(
            Tiers(BlockPool(num_tokens // BLOCK_SIZE, LruEviction)), BLOCK_SIZE, prefix_caching=False
        )
        self.config = SchedulerConfig(num_seqs, step_tokens, max_model_len=window)
        self.scheduler = Scheduler(self.config, blocks)
        self.served: Counter[str] = Counter()  # costs, by tenant
        self.ended: list[str] = []
        self.started: dict[str, int] = {}  # the step of a request's first token
        self.sent: dict[str, int] = {}
        self.num_steps = 0
        self.computed: Counter[str] = Counter()
        self.num_recomputed = 0

    @property
    def quantum(self) -> float:
        return self.config.quantum_steps * self.config.max_num_batched_tokens

    @property
    def num_share_preemptions(self) -> int:
        return self.scheduler.totals.preemptions["recompute/share"]

    def send(self, client: Client) -> str:
        request_id = f"{client.tenant}.{client.priority}.{client.num_sent}"
        client.num_sent += 1
        client.live.add(request_id)
        self.sent[request_id] = self.num_steps
        self.scheduler.add(
            AddRequest(
                request_id=request_id,
                prompt_token_ids=(0,) * client.prompt,
                sampling=SamplingParams(max_tokens=client.output, seed=0, ignore_eos=True),
                tenant=client.tenant,
                weight=client.weight,
                priority=client.priority,
            ),
            float(self.num_steps),
        )
        return request_id

    def step(self) -> None:
        for client in self.clients:
            while len(client.live) < client.in_flight and client.num_sent < client.total:
                self.send(client)
        plan = self.scheduler.schedule(float(self.num_steps))
        assert plan.chunks or not self.scheduler.has_work(), "something always runs"
        for chunk in plan.chunks:
            self._count(chunk.sequence_id, chunk.start, chunk.start + len(chunk.token_ids))
        self.num_steps += 1
        for delta in self.scheduler.update(plan, execute(plan)):
            tenant = delta.request_id.partition(".")[0]
            self.served[tenant] += 2 * len(delta.token_ids)
            self.started.setdefault(delta.request_id, self.num_steps)
            if delta.ends_request:
                self.ended.append(delta.request_id)
                for client in self.clients:
                    client.live.discard(delta.request_id)

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def _count(self, request_id: str, start: int, stop: int) -> None:
        """Tokens of a prompt count when they are computed for the first time."""
        group = self.scheduler.queues.get(request_id)
        assert group is not None
        known = self.computed[request_id]
        num_new = max(0, min(stop, group.num_prompt_tokens) - max(start, known))
        self.num_recomputed += min(stop, known) - start if start < known else 0
        self.computed[request_id] = max(known, stop)
        self.served[group.tenant] += num_new


def execute(plan: SchedulerOutput) -> StepOutput:
    asked = [chunk.sequence_id for chunk in plan.chunks if chunk.sample is not None]
    return StepOutput(tuple(Sample(sequence_id, (SampledToken(1),)) for sequence_id in asked))
