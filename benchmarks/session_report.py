"""The report of ``benchmarks.sessions``: a dict, which is the JSON, and its tables. Pure but for printing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.report import print_table
from benchmarks.session_figures import (
    BELOW,
    MAX_BUSY,
    TARGET,
    Prices,
    Run,
    differing_tokens,
    hit_rates,
    moved_bytes,
    starts,
    steps_over_fit,
    unequal,
)
from benchmarks.session_results import TIERS, Reply, TurnResult, quantile

_RIGHT = {True: "yes", False: "NO", None: "not measured"}
_QUIET = 0.05  # of all processors, that others may take without a word


def quartiles(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    ends = {"least": min(values), "most": max(values), "sum": sum(values)}
    return {**ends, "25%": low, "median": middle, "75%": high}


def report(stated: dict[str, Any], off: Run, on: Run, replayed: Sequence[TurnResult]) -> dict[str, Any]:
    prices = Prices.of(on, stated["block_bytes"])
    by_place = starts(on, off, prices)
    below = by_place.get(BELOW)
    sampled = {result.turn.session for result in replayed}
    differing = unequal(_by_turn(on.everything, sampled), _by_turn(replayed, sampled))
    verdicts = {
        "no turn failed": not on.failures and not off.failures,
        f"tiers off under {MAX_BUSY:.0%} busy": off.busy < MAX_BUSY,
        "tokens equal those of an unlimited pool": not differing if replayed else None,
        f"median start from host or disk within {TARGET} x its bound": (
            below["median_over_bound"] <= TARGET if below else None
        ),
    }
    return {
        "stated": stated,
        "verdicts": verdicts,
        "hit_rates": hit_rates(on),
        "hit_rates_off": hit_rates(off),
        "starts": by_place,
        "bytes_per_s": dict(prices.bytes_per_s),
        "costs": on.costs,
        "steps_over_fit": steps_over_fit(on, prices),
        "replayed": {"sessions": len(sampled), "turns": len(replayed), "unequal": differing},
        "differing_tokens": {
            "nothing_evicted": differing_tokens(replayed),
            "tiers_on": differing_tokens(on.delivered),
        },
        "servers": {run.name: _server(run) for run in (off, on)},
    }


def _by_turn(results: Sequence[TurnResult], sessions: set[int]) -> dict[tuple[int, int], Reply]:
    return {
        (result.turn.session, result.turn.number): result.reply
        for result in results
        if result.turn.session in sessions
    }


def _server(run: Run) -> dict[str, Any]:
    late = [result.late_s for result in run.results]
    return {
        "turns": len(run.results),
        "failures": run.failures,
        "seconds": run.seconds,
        "busy": run.busy,
        "num_blocks": run.num_blocks,
        "history_tokens": run.history_tokens,
        "moved_bytes": moved_bytes(run),
        "generated_tokens": run.grown("tidegate_generated_tokens_total{}"),
        "preemptions": sum(
            run.grown(name) for name in run.after if name.startswith("tidegate_preemptions_total")
        ),
        "client_lag_ms": {"p50": quantile(run.lags, 0.5) * 1e3, "p99": quantile(run.lags, 0.99) * 1e3},
        "sent_late_ms": {"p50": quantile(late, 0.5) * 1e3, "p99": quantile(late, 0.99) * 1e3},
        "processors": asdict(run.use),
        "turns_each": [
            [
                one.turn.session, one.turn.number, round(one.reply.ttft_s * 1e3, 1), one.possible_tokens,
                *(round(one.found[tier]) for tier in TIERS), one.new_tokens,
            ]
            for one in run.delivered
        ],
    }  # fmt: skip


def print_report(found: dict[str, Any]) -> None:
    _print_load(found)
    _print_hits(found)
    _print_starts(found)
    _print_servers(found)
    rows = [(what, _RIGHT[right]) for what, right in found["verdicts"].items()]
    print_table("Verdicts", ("", ""), rows)


def _print_load(found: dict[str, Any]) -> None:
    stated, on = found["stated"], found["servers"]["tiers on"]
    history, shape = stated["history_tokens"], stated["shape"]
    message, answer = shape["message"], shape["answer"]
    rows = [
        ("sessions", f"{shape['num_sessions']}"),
        (
            "tokens of a history at the start: least, quartiles, most",
            ", ".join(f"{history[name]:.0f}" for name in ("least", "25%", "median", "75%", "most")),
        ),
        (
            "all of them together, stated and as the server counted",
            f"{history['sum']:.0f}, {on['history_tokens']}",
        ),
        ("a turn adds: message (median), answer", f"{message['median']:.0f}, {answer[0]} to {answer[1]}"),
        ("KV of all histories / device pool", f"{stated['kv_by_pool']:.2f}"),
        ("blocks of device, host, disk", ", ".join(f"{on['num_blocks'][tier]}" for tier in TIERS)),
        ("engine seconds of a turn without tiers, alone", f"{stated['turn_cost_s']:.2f}"),
        ("turns a second", f"{stated['turns_per_s']:.3f}"),
        (
            "return times, log-normal: mean, sigma",
            f"{stated['mean_return_s']:.0f} s, {shape['return_sigma']:.1f}",
        ),
        ("counted, after a lead-in", f"{stated['seconds']:.0f} s, {stated['lead_s']:.0f} s"),
    ]
    print_table("The load", ("", ""), rows)


def _print_hits(found: dict[str, Any]) -> None:
    on, off = found["hit_rates"], found["hit_rates_off"]
    rows = [
        (name, f"{on[name]:.1%}", f"{off[name]:.1%}", "100%" if name == "all" else "")
        for name in (*TIERS, "all")
    ]
    title = f"Found of the {on['ceiling_tokens']:.0f} tokens in full blocks that returning turns had computed"
    print_table(title, ("on", "tiers on", "tiers off", "ceiling"), rows)
    kept, here = (found["differing_tokens"][name] for name in ("nothing_evicted", "tiers_on"))
    print(
        f"{kept['share']:.1%} of {kept['turns']:.0f} replayed turns did not find all that was computed: what"
        f" was generated is read\nas other tokens ({kept['blocks']:.1f} blocks each). With tiers it was"
        f" {here['share']:.1%} of {here['turns']:.0f}.\n"
    )


def _print_starts(found: dict[str, Any]) -> None:
    rows = []
    for name, row in found["starts"].items():
        rows.append(
            (
                name,
                f"{row['turns']} ({row['exactly_attributed']})",
                f"{row['load_mb']:.1f}",
                f"{row['load_ms']:.1f} + {row['step_ms']:.1f}",
                f"{row['median_ms']:.0f}",
                f"{row['p90_ms']:.0f}",
                f"{row['median_over_bound']:.2f}",
                f"{row['off_median_ms']:.0f}",
                f"{row['off_p90_ms']:.0f}",
            )
        )
    columns = (
        "history was on", "turns (alone)", "MB", "bound ms", "TTFT ms", "p90", "TTFT / bound", "tiers off ms",
        "p90",
    )  # fmt: skip
    print_table("Returning turns until their first word (medians; bound: load + step)", columns, rows)
    if (ratio := found["steps_over_fit"]) is not None:
        print(f"Such steps alone, measured afterwards, took {ratio:.2f} times what the bound has for them.\n")


def _print_servers(found: dict[str, Any]) -> None:
    servers = found["servers"]
    rates = ", ".join(f"{tier} {rate / 1e9:.2f}" for tier, rate in found["bytes_per_s"].items())

    def row(title: str, show: Any) -> tuple[str, ...]:
        return (title, *(show(server) for server in servers.values()))

    rows = [
        row("turns", lambda s: f"{s['turns']}"),
        row("failed", lambda s: f"{len(s['failures'])}"),
        row("engine busy", lambda s: f"{s['busy']:.1%}"),
        row("MB moved: out, in, to disk, from disk", lambda s: _megabytes(s["moved_bytes"])),
        row("preemptions", lambda s: f"{s['preemptions']:.0f}"),
        row("client late, ms: p50, p99", lambda s: _pair(s["client_lag_ms"])),
        row("turns sent late, ms: p50, p99", lambda s: _pair(s["sent_late_ms"])),
        row("processors: server", lambda s: f"{s['processors']['server']:.0%}"),
        row("processors: this client", lambda s: f"{s['processors']['client']:.1%}"),
        row("processors: everybody else", lambda s: f"{s['processors']['others']:.1%}"),
    ]
    print_table(f"The servers (loads, GB/s: {rates or 'none'})", ("", *servers), rows)
    if any(server["processors"]["others"] > _QUIET for server in servers.values()):
        print("The machine was not quiet: others used its processors, and all times are longer for it.\n")
    for name, server in servers.items():
        for failure in server["failures"][:5]:
            print(f"{name}: {failure}")


def _megabytes(moved: dict[str, float]) -> str:
    return ", ".join(f"{num_bytes / 1e6:.0f}" for num_bytes in moved.values())


def _pair(values: dict[str, float]) -> str:
    return f"{values['p50']:.1f}, {values['p99']:.1f}"
