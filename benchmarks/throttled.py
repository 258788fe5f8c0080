"""One real point of the restore policies: ``python -m benchmarks.throttled``.

The built-in model computes; a mover that sleeps copies as fast as it is told to. A conversation of 1,500
tokens that is on host comes back under each policy in turn, again and again, with copying slower than,
as fast as, and faster than computing. Beside the medians: what the cost model predicted.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.report import print_table, write_json
from engine.config import EngineConfig, MemorySize
from engine.core import EngineCore
from engine.execution.runner import LoadedRunner, load_runner
from engine.execution.tiers import as_bytes
from engine.messages import AddRequest, SamplingParams
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.cost_model import CostModel
from tiering.movers.base import WorkerMover
from tiering.movers.thread import BlockCopier
from tiering.policies.eviction import LruEviction
from tiering.policies.registry import RESTORE
from tiering.policies.restore import RestoreMode, RestoreSituation
from tiering.policies.write import WriteThrough
from tiering.tiers import Tiers
from tiering.transfers import TransferEngine
from tiering.types import Tier, TransferJob, TransferKind, TransferOutcome

CONTEXT = 1500
STEP_TOKENS = 256
_DEVICE_BLOCKS = 256
_HOST_BLOCKS = 2048


class _Switch:
    """The restore policy of the moment, which also keeps what it was last asked."""

    name = "switch"

    def __init__(self) -> None:
        self.policy = RESTORE["swap"]()
        self.asked: RestoreSituation | None = None

    def restore(self, situation: RestoreSituation) -> RestoreMode:
        self.asked = situation
        return self.policy.restore(situation)

    def keeps(self, situation: RestoreSituation) -> bool:
        return self.policy.keeps(situation)


class Engine:
    """A core around a loaded model, with a host tier behind a mover of ``block_s`` a block."""

    def __init__(self, loaded: LoadedRunner) -> None:
        self.block_s = 0.0
        self.policy = _Switch()
        self.costs = CostModel(16, loaded.layout.block_bytes, STEP_TOKENS)
        self._awake = threading.Event()
        host = np.zeros((_HOST_BLOCKS, loaded.layout.block_bytes), dtype=np.uint8)
        self._copier = BlockCopier(as_bytes(loaded.pool), host, None)
        self._tiers = Tiers(
            BlockPool(_DEVICE_BLOCKS, LruEviction, self.costs.block_s),
            BlockPool(_HOST_BLOCKS, LruEviction, self.costs.block_s, below=None),
            writes={Tier.DEVICE: WriteThrough()},
        )
        blocks = BlockManager(self._tiers, 16, restore=self.policy, costs=self.costs)
        mover = WorkerMover("throttled", 1, self._copy, self._awake.set)
        movers = {TransferKind.SWAP_OUT: mover, TransferKind.SWAP_IN: mover}
        self._transfers = TransferEngine(movers, loaded.layout.block_bytes, time.perf_counter)
        config = SchedulerConfig(8, STEP_TOKENS, loaded.info.max_model_len)
        self._core = EngineCore(
            Scheduler(config, blocks),
            blocks,
            self._transfers,
            loaded.runner,
            max_model_len=config.max_model_len,
            vocab_size=loaded.info.vocab_size,
            clock=time.perf_counter,
        )
        self._num_requests = 0

    def first_token_s(self, token_ids: tuple[int, ...]) -> float:
        """Wait for the one token of a prompt, then for all copies."""
        self._num_requests += 1
        sampling = SamplingParams(max_tokens=1, seed=0, ignore_eos=True, temperature=0.0)
        started, answered = time.perf_counter(), None
        self._core.add(
            AddRequest(request_id=f"r{self._num_requests}", prompt_token_ids=token_ids, sampling=sampling)
        )
        while answered is None or self._transfers.num_pending:
            self._awake.clear()
            report = self._core.step()
            if report is not None and any(delta.token_ids for delta in report.deltas):
                answered = time.perf_counter() - started
            if not self._core.can_step() and self._transfers.num_pending:
                self._awake.wait(1.0)
        return answered

    def forget_device(self) -> None:
        """Evict all that the device has cached."""
        for name, _ in tuple(self._tiers.device.named_blocks()):
            self._tiers.device.forget(name)

    def close(self) -> None:
        self._transfers.close()

    def _copy(self, job: TransferJob) -> TransferOutcome:
        started = time.perf_counter()
        outcome = self._copier.copy(job)
        if job.kind is TransferKind.SWAP_IN:
            time.sleep(max(0.0, self.block_s - (time.perf_counter() - started)))
        return outcome


def measure(engine: Engine, ratio: float, rounds: int) -> dict[str, dict[str, float]]:
    """Medians in seconds by policy, where copying takes ``ratio`` times as long as computing."""
    conversation = tuple(int(i) for i in np.random.default_rng(int(ratio * 100)).integers(5, 40_000, CONTEXT))
    engine.policy.policy = RESTORE["recompute"]()
    alone = []
    for _ in range(3):
        engine.forget_device()
        alone.append(engine.first_token_s(conversation))
    engine.block_s = ratio * statistics.median(alone) / (CONTEXT // 16)
    engine.policy.policy = RESTORE["swap"]()
    engine.forget_device()
    engine.first_token_s(conversation)  # lets the cost model see this bandwidth
    times: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, make in RESTORE.items():
            engine.policy.policy = make()
            engine.forget_device()
            times[name].append(engine.first_token_s(conversation))
            asked = engine.policy.asked
            if asked is not None and asked.load_s is not None and asked.compute_s is not None:
                predicted["swap"].append(asked.load_s)
                predicted["recompute"].append(asked.compute_s)
    result = {name: {"median_s": statistics.median(values)} for name, values in times.items()}
    for name, values in predicted.items():
        result[name]["predicted_s"] = statistics.median(values)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = EngineConfig(
        model="", device="cpu", max_model_len=2048, device_kv=MemorySize(num_bytes=200 * 2**20),
        max_num_batched_tokens=STEP_TOKENS,
    )  # fmt: skip
    engine = Engine(load_runner(config, lambda *_: None))
    rows, results = [], {}
    for ratio in (0.3, 1.0, 3.0):
        found = results[str(ratio)] = measure(engine, ratio, options.rounds)
        best = min(found["swap"]["median_s"], found["recompute"]["median_s"])
        rows.append(
            (
                f"{ratio:g}",
                *(_cell(found[name]) for name in RESTORE),
                f"{found['adaptive']['median_s'] / best:.2f}",
                f"{found['overlap']['median_s'] / best:.2f}",
            )
        )
    engine.close()
    columns = ("x copy", *(f"{name} ms" for name in RESTORE), "adaptive/best", "overlap/best")
    print_table(f"A conversation of {CONTEXT} tokens returns; (predicted)", columns, rows)
    write_json(options.json, {"context": CONTEXT, "ratios": results})


def _cell(found: dict[str, float]) -> str:
    predicted = f" ({found['predicted_s'] * 1e3:.0f})" if "predicted_s" in found else ""
    return f"{found['median_s'] * 1e3:.0f}{predicted}"


if __name__ == "__main__":
    main()
