"""What each part of ``make bench`` found, as its JSON has it, made sections of the one table. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.bench_rows import Row, Section
from loadtest.results import Interval

Json = dict[str, Any]
_GOAL_RUNNING = 256  # sequences, of which the goal of a step is
_KINDS = {"sse": "SSE", "ws": "WebSocket"}


def cpu_sections(found: Json) -> list[Section]:
    """As ``benchmarks.cpu_engine`` has made them."""
    return msgspec.convert(found["sections"], type=list[Section])


def gateway_sections(found: Json) -> list[Section]:
    """Of ``benchmarks.gateway``: what a token costs, what it waits, what a stream takes."""
    goals = found["goals"]
    rows = [row for carried in found["carried"] for row in _carried(carried, goals)]
    rows += [_latency(latency, goals["p99_ms"]) for latency in found["latencies"]]
    rows += [*_crowd_rows(found["memory"], found["ramp"])]
    sections = [Section(name="Gateway, over a scripted engine", rows=rows)]
    if found["stages"] is not None:
        sections.append(Section(name="Gateway, a token over SSE by stage", rows=[*_stages(found)]))
    return sections


def _carried(carried: Json, goals: Json) -> Iterator[Row]:
    kind = _KINDS.get(carried["kind"], carried["kind"])
    name = f"{kind}, {carried['num_streams']:,} streams: "
    yield Row(
        name=f"{name}processor time of a token",
        unit="µs",
        value=carried["us_per_token"],
        beside={"bare loop": carried["floor_us"]},
        held_to="bare loop",
        ratio=carried["ratio"],
        interval=Interval(carried["ratio_low"], carried["ratio_high"]),
        goal=goals["ratio"],
        is_ceiling=True,
    )
    yield Row(
        name=f"{name}tokens/s of a core",
        value=carried["tokens_per_s_of_a_core"],
        goal=goals["tokens_per_s_of_a_core"],
        judges_value=True,
        note=f"{carried['tokens_per_event']:.3f} tokens an event{_lagging(carried['num_lagging'])}",
    )


def _lagging(num_rounds: int) -> str:
    return f"; {num_rounds} rounds in which it lagged left out" if num_rounds else ""


def _latency(latency: Json, goal_ms: float) -> Row:
    how = "all in step" if latency["phases"] == 1 else f"in {latency['phases']} groups by turns"
    return Row(
        name=f"{latency['num_streams']:,} streams, {latency['events_per_s']:,.0f} events/s, {how}: p99 added",
        unit="ms",
        value=latency["p99_ms"],
        goal=goal_ms,
        is_ceiling=True,
        judges_value=True,
        note=f"median {latency['p50_ms']:.1f}, gateway {latency['gateway_share']:.0%} of a core",
    )


def _crowd_rows(memory: Json | None, ramp: Json | None) -> Iterator[Row]:
    if memory is not None:
        for kind in ("idle", "active"):
            size = memory[f"{kind}_bytes"] / 1024
            yield Row(
                name=f"memory of an {kind} stream, of {memory['num_streams']:,}", unit="KiB", value=size
            )
    if ramp is not None:
        yield Row(
            name=f"ramp to {ramp['num_streams']:,} streams: lost",
            unit="streams",
            value=ramp["num_ended"],
            goal=0,
            is_ceiling=True,
            judges_value=True,
            note=f"after {ramp['reached_s']:.1f} s, then {ramp['tokens_share']:.1%} of the tokens came",
        )


def _stages(found: Json) -> Iterator[Row]:
    for name, value in found["stages"].items():
        note = "of a request with one stop string" if name == "stop_check_us" else ""
        yield Row(name=name.removesuffix("_us").replace("_", " "), unit="µs", value=value, note=note)
    if found["rest_us"] is not None:
        yield Row(name="event loop and all else", unit="µs", value=found["rest_us"])


def step_sections(found: Json) -> list[Section]:
    """Of ``benchmarks.engine_step``: a row for each shape, held to the first with as many sequences."""
    firsts = {shape["running"]: shape for shape in reversed(found["shapes"])}
    rows = [
        Row(
            name=f"{shape['running']} × {shape['context']:,} tokens, {shape['waiting']:,} waiting",
            unit="ms",
            value=1000 * shape["total_s"],
            beside={"the first": 1000 * firsts[shape["running"]]["total_s"]},
            held_to="the first",
            ratio=shape["ratio"],
            interval=Interval(shape["ratio_low"], shape["ratio_high"]),
            goal=1000 * found["goal_s"] if shape["running"] == _GOAL_RUNNING else None,
            is_ceiling=True,
            judges_value=True,
            note=f"{1e6 * shape['total_s'] / shape['running']:.1f} µs a sequence",
        )
        for shape in found["shapes"]
    ]
    return [Section(name="Engine's own time in a step, processor time", rows=rows)]
