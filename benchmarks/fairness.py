"""A quiet tenant beside one that floods: its share, and how long it waits, in simulated time.

``python -m benchmarks.fairness``. The engine's own scheduler and block manager run over imagined tokens; a
step takes what the simulated machine needs for it. One tenant keeps a thousand requests in the house, the
quiet one sends one request after another with pauses of a second. Each row is run three times: the quiet
tenant alone, beside the flood as another tenant, and beside the flood as the same tenant, which is first
come, first served. A second table has two tenants that both flood.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import print_table, write_json
from benchmarks.virtual import BLOCK_SIZE, Machine
from engine.messages import AddRequest, SamplingParams
from engine.schedule import Sample, SampledToken, SchedulerOutput, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.policies.eviction import LruEviction
from tiering.tiers import Tiers

MACHINE = Machine(step_s=0.004, token_s=30e-6, pair_s=1e-9, block_s=0.0, step_tokens=512)
WINDOW = 8192
FLOODS = {"short": (100, 100), "long answers": (100, 2000), "long prompts": (4000, 50)}
POOLS = {"places": 10**6, "blocks": 20_000}
PLACES = 64
QUIET = (200, 50)
PAUSE_S = 1.0


@dataclass(slots=True)
class Sender:
    """Keeps ``in_flight`` requests of one kind in the house, each ``pause_s`` after the end of another."""

    tenant: str
    prompt: int
    output: int
    in_flight: int
    weight: float = 1.0
    pause_s: float = 0.0
    num_sent: int = 0
    send_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.send_at = [0.0] * self.in_flight


class SharedHouse:
    """Senders at one simulated engine. ``served``: costs by sender; ``ttft_s`` of each sender's requests."""

    def __init__(self, senders: list[Sender], num_tokens: int, *, apart: bool = True) -> None:
        blocks = BlockManager(
            Tiers(BlockPool(num_tokens // BLOCK_SIZE, LruEviction)), BLOCK_SIZE, prefix_caching=False
        )
        config = SchedulerConfig(PLACES, MACHINE.step_tokens, max_model_len=WINDOW)
        self.scheduler = Scheduler(config, blocks)
        self.now = 0.0
        self.served: Counter[str] = Counter()
        self.ttft_s: dict[str, list[float]] = {sender.tenant: [] for sender in senders}
        self._senders = senders
        self._apart = apart
        self._arrived: dict[str, float] = {}
        self._known: Counter[str] = Counter()

    def run(self, until_s: float) -> None:
        while self.now < until_s:
            self._send()
            plan = self.scheduler.schedule(self.now)
            if not plan.chunks:
                self.now = min(time for sender in self._senders for time in sender.send_at)
                continue
            self._count(plan)
            m = MACHINE
            self.now += m.step_s + m.token_s * plan.num_tokens + m.pair_s * plan.num_pairs
            asked = [chunk.sequence_id for chunk in plan.chunks if chunk.sample is not None]
            output = StepOutput(tuple(Sample(name, (SampledToken(1),)) for name in asked))
            for delta in self.scheduler.update(plan, output):
                self._take(delta.request_id, ends=delta.ends_request)

    def _send(self) -> None:
        for sender in self._senders:
            due = [time for time in sender.send_at if time <= self.now]
            sender.send_at = [time for time in sender.send_at if time > self.now]
            for time in due:
                name = f"{sender.tenant}.{sender.num_sent}"
                sender.num_sent += 1
                self._arrived[name] = time
                self.scheduler.add(self._request(sender, name), self.now)

    def _request(self, sender: Sender, name: str) -> AddRequest:
        return AddRequest(
            request_id=name,
            prompt_token_ids=(0,) * sender.prompt,
            sampling=SamplingParams(max_tokens=sender.output, seed=0, ignore_eos=True),
            tenant=sender.tenant if self._apart else "",
            weight=sender.weight,
        )

    def _count(self, plan: SchedulerOutput) -> None:
        """Tokens of prompts, when they are computed for the first time."""
        for chunk in plan.chunks:
            group = self.scheduler.queues.get(chunk.sequence_id)
            assert group is not None
            stop = min(chunk.start + len(chunk.token_ids), group.num_prompt_tokens)
            new = max(0, stop - self._known[chunk.sequence_id])
            self._known[chunk.sequence_id] += new
            self.served[chunk.sequence_id.partition(".")[0]] += new

    def _take(self, name: str, *, ends: bool) -> None:
        tenant = name.partition(".")[0]
        self.served[tenant] += 2
        if name in self._arrived:
            self.ttft_s[tenant].append(self.now - self._arrived.pop(name))
        if ends:
            sender = next(sender for sender in self._senders if sender.tenant == tenant)
            sender.send_at.append(self.now + sender.pause_s)
            del self._known[name]


def flood(kind: str, tenant: str = "flood", weight: float = 1.0) -> Sender:
    prompt, output = FLOODS[kind]
    return Sender(tenant, prompt, output, in_flight=1000, weight=weight)


def quiet_row(kind: str, pool: str, seconds: float) -> dict[str, object]:
    """How the quiet tenant fares alone, beside a flood as another tenant, and as one with it."""
    row: dict[str, object] = {"flood": kind, "short_of": pool}
    for case in ("alone", "fair", "first_come"):
        quiet = Sender("quiet", *QUIET, in_flight=1, pause_s=PAUSE_S)
        senders = [quiet] if case == "alone" else [quiet, flood(kind)]
        house = SharedHouse(senders, POOLS[pool], apart=case != "first_come")
        if case != "alone":
            quiet.send_at = [20.0]
        house.run(seconds)
        waits = house.ttft_s["quiet"]
        preemptions = house.scheduler.totals.preemptions
        row[case] = {
            "answers": len(waits),
            "ttft_ms": {
                "p50": round(statistics.median(waits) * 1e3, 1) if waits else None,
                "max": round(max(waits) * 1e3, 1) if waits else None,
            },
            "served": house.served["quiet"],
            "share_preemptions": sum(n for name, n in preemptions.items() if name.endswith("/share")),
            "flood_served_per_s": round(house.served["flood"] / seconds),
        }
    return row


def share_row(kind: str, pool: str, weight: float, seconds: float) -> dict[str, object]:
    """What two tenants get that both have more to do than fits."""
    house = SharedHouse([flood(kind, "a", weight), flood(kind, "b")], POOLS[pool])
    house.run(seconds)
    alone = SharedHouse([flood(kind, "a")], POOLS[pool])
    alone.run(seconds)
    return {
        "kind": kind,
        "short_of": pool,
        "weights": [weight, 1.0],
        "share": round(house.served["a"] / house.served.total(), 4),
        "of_what_one_alone_gets": round(house.served.total() / alone.served.total(), 4),
        "preemptions": dict(house.scheduler.totals.preemptions),
    }


def _shown(case: object) -> tuple[str, str, str]:
    assert isinstance(case, dict)
    times = case["ttft_ms"]
    return f"{case['answers']}", f"{times['p50'] or '-'}", f"{times['max'] or '-'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of simulated time for each row")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    quiet = [quiet_row(kind, pool, options.seconds) for kind in FLOODS for pool in POOLS]
    columns = (
        "flood of", "short of",
        *(f"{case} {what}" for case in ("alone", "fair", "fcfs") for what in ("answers", "p50 ms", "max ms")),
        "gave way",
    )  # fmt: skip
    rows = []
    for row in quiet:
        fair = row["fair"]
        assert isinstance(fair, dict)
        cells = [cell for case in ("alone", "fair", "first_come") for cell in _shown(row[case])]
        rows.append((str(row["flood"]), str(row["short_of"]), *cells, f"{fair['share_preemptions']}"))
    print_table("A quiet tenant's answers and times to first token, simulated", columns, rows)
    shares = [
        share_row(kind, pool, weight, options.seconds)
        for kind in FLOODS
        for pool in POOLS
        for weight in (1.0, 3.0)
    ]
    print_table(
        "Share of the first of two tenants that both flood",
        ("kind", "short of", "weights", "share", "of one alone"),
        [
            (str(r["kind"]), str(r["short_of"]), str(r["weights"]), str(r["share"]),
             str(r["of_what_one_alone_gets"]))
            for r in shares
        ],
    )  # fmt: skip
    write_json(options.json, {"quiet": quiet, "shares": shares})


if __name__ == "__main__":
    main()
