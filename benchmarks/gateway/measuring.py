"""The parts of the measurement, one after the other, on servers that they share where they can."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gateway import carrying, crowds, latency, stages
from benchmarks.gateway.report import Found
from benchmarks.gateway.requests import Kind
from benchmarks.gateway.running import Measured, Pace, floor, gateway, out_of_the_way
from benchmarks.gateway.scales import FULL, PARTS, Part, Scale
from engine.config import EngineConfig, EngineScript
from engine.scripted_process import scripted_info, words_of

KINDS: tuple[Kind, ...] = ("sse", "ws")


def measure(parts: Collection[Part] = PARTS, scale: Scale = FULL, kinds: Collection[Kind] = KINDS) -> Found:
    """All these parts, one after the other."""
    found = Found()
    with out_of_the_way():
        if "memory" in parts:  # the first on a gateway that nobody has used
            with gateway(scale.crowd_pace, scale.memory_streams) as server:
                found.memory = crowds.memory(server, scale.memory_streams)
        with ExitStack() as scope:
            servers = _Servers(scope)
            if "carry" in parts:
                _carry(found, servers, scale, kinds)
            if "latency" in parts:
                _latency(found, servers, scale)
            if "ramp" in parts:
                server = servers.gateway(scale.crowd_pace, scale.ramp_streams)
                found.ramp = crowds.ramp(server, scale.ramp_streams, scale.crowd_pace, scale.length_s)
        if "stages" in parts:
            found.stages = stages.measure(scale.carry_streams, scale.stage_rounds)
    return found


class _Servers:
    """Gateways by pace and size, each started when it is first asked for, and ended with ``scope``."""

    def __init__(self, scope: ExitStack) -> None:
        self._scope = scope
        self._running: dict[tuple[Pace, int], Measured] = {}

    def gateway(self, pace: Pace, num_streams: int) -> Measured:
        if (pace, num_streams) not in self._running:
            self._running[pace, num_streams] = self._scope.enter_context(gateway(pace, num_streams))
        return self._running[pace, num_streams]

    def floor(self, pace: Pace) -> Measured:
        return self._scope.enter_context(floor(pace))


def _carry(found: Found, servers: _Servers, scale: Scale, kinds: Collection[Kind]) -> None:
    server = servers.gateway(scale.carry_pace, scale.carry_streams)
    bare_server = servers.floor(scale.carry_pace)
    for kind in kinds:
        found.carried.append(
            carrying.measure(
                kind, server, bare_server,
                num_streams=scale.carry_streams, pace=scale.carry_pace, rounds=scale.rounds,
                length_s=scale.length_s,
            )
        )  # fmt: skip


def _latency(found: Found, servers: _Servers, scale: Scale) -> None:
    info = scripted_info(EngineConfig(model="", script=EngineScript(1.0)))
    words = words_of(Path(info.tokenizer_dir))
    for pace in scale.latency_paces:
        server = servers.gateway(pace, scale.latency_streams)
        found.latencies.append(
            latency.measure(
                server, words,
                num_streams=scale.latency_streams, pace=pace, watch_each=scale.watch_each,
                length_s=scale.length_s,
            )
        )  # fmt: skip
