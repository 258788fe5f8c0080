"""The engine's own scheduler, block manager and policies in simulated time.

Only the two ends are simulated: a step takes ``step_s`` + ``token_s`` a token + ``pair_s`` a query-key pair,
a block's copy takes bytes / bandwidth. Nothing waits; the clock jumps to whatever ends next.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.core import EngineCore
from engine.messages import AddRequest, SamplingParams
from engine.schedule import Sample, SampledToken, SchedulerOutput, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.cost_model import CostModel
from tiering.movers.virtual import VirtualMover
from tiering.policies.eviction import LruEviction
from tiering.policies.registry import restore_factory
from tiering.policies.write import WriteThrough
from tiering.tiers import Tiers
from tiering.transfers import TransferEngine
from tiering.types import Tier, TransferKind

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds. ``block_s`` is the time of one block's copy, either way."""

    step_s: float
    token_s: float
    pair_s: float
    block_s: float
    step_tokens: int = 512


class Clock:
    """Seconds since the simulation began."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Executor:
    def __init__(self, machine: Machine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        m = self._machine
        self._clock.now += m.step_s + m.token_s * plan.num_tokens + m.pair_s * plan.num_pairs
        asked = [chunk.sequence_id for chunk in plan.chunks if chunk.sample is not None]
        return StepOutput(tuple(Sample(sequence_id, (SampledToken(1),)) for sequence_id in asked))


class Simulation:
    """One engine with room for two conversations of ``context`` tokens on the device, and many on host."""

    def __init__(self, machine: Machine, context: int, restore: str) -> None:
        num_blocks = 2 * (context // BLOCK_SIZE + 8)
        self._clock = Clock()
        self._mover = VirtualMover(
            {TransferKind.SWAP_OUT: machine.block_s, TransferKind.SWAP_IN: machine.block_s}, self._clock
        )
        costs = CostModel(BLOCK_SIZE, 1, machine.step_tokens)
        device = BlockPool(num_blocks, LruEviction, costs.block_s)
        host = BlockPool(8 * num_blocks, LruEviction, costs.block_s, below=None)
        self._tiers = Tiers(device, host, writes={Tier.DEVICE: WriteThrough()})
        blocks = BlockManager(self._tiers, BLOCK_SIZE, restore=restore_factory(restore)(), costs=costs)
        config = SchedulerConfig(8, machine.step_tokens, max_model_len=context + 64)
        self._core = EngineCore(
            Scheduler(config, blocks),
            blocks,
            TransferEngine(
                dict.fromkeys((TransferKind.SWAP_OUT, TransferKind.SWAP_IN), self._mover), 1, self._clock
            ),
            _Executor(machine, self._clock),
            max_model_len=config.max_model_len,
            vocab_size=2**31,
            clock=self._clock,
        )
        self._num_requests = 0

    def first_token_s(self, token_ids: tuple[int, ...]) -> float:
        """Send a prompt and wait for its one token; then let all copies end."""
        self._num_requests += 1
        name, arrived = f"r{self._num_requests}", self._clock.now
        sampling = SamplingParams(max_tokens=1, seed=0, ignore_eos=True)
        self._core.add(AddRequest(request_id=name, prompt_token_ids=token_ids, sampling=sampling))
        answered = None
        while answered is None or self._mover.next_end is not None:
            report = self._core.step()
            if report is not None and any(delta.token_ids for delta in report.deltas):
                answered = self._clock.now - arrived
            if not self._core.can_step() and self._mover.next_end is not None:
                self._clock.now = max(self._clock.now, self._mover.next_end)
        return answered

    def forget_device(self) -> None:
        """Evict all that the device has cached, as other conversations would."""
        for name, _ in tuple(self._tiers.device.named_blocks()):
            self._tiers.device.forget(name)


def returning_ttft_s(machine: Machine, context: int, restore: str) -> float:
    """From arrival to first token for a conversation that is on host, once the engine knows its machine."""
    simulation = Simulation(machine, context, restore)
    for number in (1, 2, 3):  # distinct lengths, so that the cost model can tell its terms apart
        warm_up = tuple(range(number * 10**6, number * 10**6 + context * number // 3 + 1))
        simulation.first_token_s(warm_up)
        simulation.forget_device()
        simulation.first_token_s(warm_up)
    conversation = tuple(range(context + 1))
    simulation.first_token_s(conversation)
    simulation.forget_device()
    return simulation.first_token_s(conversation)
