"""Sessions that come back, with KV many times the device pool: ``python -m benchmarks.sessions``.

Every session is brought to its starting history, uncounted. Then its user comes back after log-normal times,
says something and reads a short answer, through the Responses API. A server without tiers goes first: the
rate of turns is such that it is busy for a given share of the time. The same schedule goes to the server with
tiers. A sample of the sessions is replayed on one that never evicts anything; its tokens must be the same.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.processors import processor_use
from benchmarks.report import write_json
from benchmarks.restore import num_blocks
from benchmarks.servers import Server, serving
from benchmarks.session_client import Client, client_of, measured_lag
from benchmarks.session_drive import Drive, some_returns
from benchmarks.session_figures import Run
from benchmarks.session_plan import LoadPlan, LoadShape, PlannedTurn, Spread
from benchmarks.session_report import print_report, quartiles, report
from benchmarks.session_results import BLOCK_SIZE, TurnResult

_PROBED_BYTES = 100 * 2**20
_CALIBRATED_TURNS = 16
_CHECKED_STEPS = 8
_TURNS_AHEAD = 12  # of a session, for which the window has room
_NOTICE_S = 0.5  # before the schedule begins


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured. Sizes are of the device pool in histories, and of the tiers below in device pools."""

    shape: LoadShape
    seconds: float = 600.0
    lead_s: float = 30.0
    target_busy: float = 0.55
    turns_per_s: float | None = None
    kv_by_pool: float = 6.0
    host_by_pool: float = 2.0
    num_sampled: int = 20
    deterministic: bool = True
    websocket: bool = False
    serve_arguments: tuple[str, ...] = ()
    block_bytes: int | None = None  # None: find out


class Bench:
    """Runs the servers, one after the other."""

    def __init__(self, setting: Setting, scratch: Path) -> None:
        self.setting = setting
        self.plan = LoadPlan(setting.shape)
        self.turns_per_s = setting.turns_per_s or 0.0
        self.turn_cost_s = 0.0
        self.returns: list[PlannedTurn] = []
        self._directory = scratch / "kv"
        self.sampled = frozenset(range(min(setting.num_sampled, setting.shape.num_sessions)))
        self.block_bytes = setting.block_bytes or _block_bytes()
        self.history_blocks = sum(-(-tokens // BLOCK_SIZE) for tokens in self.plan.history_tokens)
        self.pool_blocks = round(self.history_blocks / setting.kv_by_pool)

    def off(self) -> Run:
        """The server with the device pool alone; sets the rate."""
        return self._serve("tiers off", ("--device-kv", self._bytes(self.pool_blocks)))

    def on(self) -> Run:
        """The same with host and disk below it, which hold everything twice."""
        host = round(self.setting.host_by_pool * self.pool_blocks)
        disk = f"{self._directory}:{self._bytes(2 * self.history_blocks)}"
        tiers = ("--host-kv", self._bytes(host), "--disk-kv", disk)
        return self._serve("tiers on", ("--device-kv", self._bytes(self.pool_blocks), *tiers))

    def replayed(self) -> list[TurnResult]:
        """The sample's turns, up to the last one that was due, on a server with room for everything."""
        room = self._bytes(len(self.sampled) * -(-self.plan.window(_TURNS_AHEAD) // BLOCK_SIZE))
        turns = [turn for turn in self.plan.openings() if turn.session in self.sampled]
        turns += [turn for turn in self.returns if turn.session in self.sampled]

        async def replay(server: Server) -> list[TurnResult]:
            async with client_of(server.port, websocket=self.setting.websocket) as client:
                drive = Drive(client, self.sampled)
                for turn in turns:
                    await drive.take_turn(turn)
                return drive.results

        with serving(self._arguments(("--device-kv", room))) as server:
            return uvloop.run(replay(server))

    def stated(self, run: Run) -> dict[str, Any]:
        """What was asked for, and what came of it for a server like that of ``run``."""
        setting, shape = self.setting, self.setting.shape
        return {
            "shape": asdict(shape),
            "deterministic": setting.deterministic,
            "websocket": setting.websocket,
            "serve_arguments": setting.serve_arguments,
            "seconds": setting.seconds,
            "lead_s": setting.lead_s,
            "turn_cost_s": self.turn_cost_s,
            "turns_per_s": self.turns_per_s,
            "mean_return_s": shape.num_sessions / self.turns_per_s,
            "history_tokens": quartiles(self.plan.history_tokens),
            "block_bytes": self.block_bytes,
            "kv_by_pool": self.history_blocks / run.num_blocks["device"],
        }

    def _serve(self, name: str, tiers: Sequence[str]) -> Run:
        run = Run(name)
        with serving(self._arguments(tiers)) as server:
            uvloop.run(self._measure(server, run))
            run.costs = server.kv()["costs"]
            run.num_blocks = {tier: num_blocks(server, tier) for tier in server.kv()["tiers"]}
        return run

    async def _measure(self, server: Server, run: Run) -> None:
        async with client_of(server.port, websocket=self.setting.websocket) as client:
            drive = Drive(client, self.sampled)
            await drive.open(self.plan.openings())
            run.history_tokens = sum(result.reply.input_tokens for result in drive.results)
            await asyncio.to_thread(server.wait_quiet)
            if not self.turns_per_s:
                await self._calibrate(drive)
            await self._count(server, client, drive, run)
            run.steps_alone = await drive.steps_alone(some_returns(self.returns, _CHECKED_STEPS))

    async def _calibrate(self, drive: Drive) -> None:
        """Choose the rate by what turns cost without tiers, on a server that does nothing else."""
        turns = self.plan.returns(1.0, self.setting.shape.num_sessions)
        self.turn_cost_s = await drive.cost_of_turn(some_returns(turns, _CALIBRATED_TURNS))
        self.turns_per_s = self.setting.target_busy / self.turn_cost_s

    async def _count(self, server: Server, client: Client, drive: Drive, run: Run) -> None:
        """The schedule, of which all but the lead-in counts."""
        lead_s = self.setting.lead_s
        self.returns = self.plan.returns(self.turns_per_s, lead_s + self.setting.seconds)
        started = time.monotonic() + _NOTICE_S
        sending = asyncio.create_task(drive.run(self.returns, started))
        await asyncio.sleep(started + lead_s - time.monotonic())
        run.before, counted_from = await client.samples(), time.monotonic()
        with processor_use(server.process.pid) as run.use:
            async with measured_lag() as run.lags:
                await sending
                await asyncio.sleep(counted_from + self.setting.seconds - time.monotonic())
        run.after, run.seconds = await client.samples(), time.monotonic() - counted_from
        run.everything = list(drive.results)
        run.results = [one for one in drive.results if one.turn.number and one.turn.at >= lead_s]

    def _arguments(self, tiers: Sequence[str]) -> list[str]:
        window = min(self.plan.window(_TURNS_AHEAD), self.pool_blocks * BLOCK_SIZE)
        mode = ("--deterministic",) if self.setting.deterministic else ()
        return ["--max-model-len", str(window), *tiers, *mode, *self.setting.serve_arguments]

    def _bytes(self, num_blocks: int) -> str:
        return str(num_blocks * self.block_bytes)


def _block_bytes() -> int:
    with serving(["--device-kv", str(_PROBED_BYTES)]) as server:
        block_bytes = _PROBED_BYTES // num_blocks(server, "device")
    return block_bytes - block_bytes % 512


def measure(setting: Setting, directory: Path) -> dict[str, Any]:
    """Everything, as one report. What is on disk meanwhile is below ``directory``."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        bench = Bench(setting, Path(scratch))
        off, on = bench.off(), bench.on()
        replayed = bench.replayed() if setting.deterministic else []
    return report(bench.stated(on), off, on, replayed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0, help="that count")
    parser.add_argument(
        "--lead-in", type=float, default=30.0, help="seconds of the schedule that do not count"
    )
    parser.add_argument("--history", type=int, default=480, help="median tokens of a history at the start")
    parser.add_argument("--kv-by-pool", type=float, default=6.0, help="KV of all histories / device pool")
    parser.add_argument("--host-by-pool", type=float, default=2.0, help="host tier / device pool")
    parser.add_argument("--busy", type=float, default=0.55, help="of the server without tiers, to aim at")
    parser.add_argument("--rate", type=float, help="turns a second, instead of finding out")
    parser.add_argument("--sampled", type=int, default=20, help="sessions that are replayed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--websocket", action="store_true", help="a WebSocket for each session, not HTTP")
    parser.add_argument("--serve", default="", help="more arguments of `tidegate serve`, as one string")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    history = Spread(options.history, 0.4, options.history // 4, options.history * 5 // 2)
    setting = Setting(
        LoadShape(options.sessions, history, seed=options.seed),
        seconds=options.minutes * 60,
        lead_s=options.lead_in,
        target_busy=options.busy,
        turns_per_s=options.rate,
        kv_by_pool=options.kv_by_pool,
        host_by_pool=options.host_by_pool,
        num_sampled=options.sampled,
        deterministic=options.deterministic,
        websocket=options.websocket,
        serve_arguments=tuple(shlex.split(options.serve)),
    )
    found = measure(setting, Path.cwd())
    print_report(found)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
