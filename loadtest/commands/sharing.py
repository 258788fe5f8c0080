"""``tideload sharing``: KV memory that several answers to a prompt save."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from loadtest.describe import EXIT_USER_ERROR
from loadtest.lengths import BUILT_IN, Lengths, LengthsError, built_in, read_lengths
from loadtest.sharing import WIDTHS, Saving, measure

_KINDS = ("parallel", "beam")


@click.command("sharing")
@click.option(
    "--lengths",
    "sources",
    multiple=True,
    metavar="NAME|FILE",
    help="alpaca, sharegpt, or a file: CSV with input_length and output_length, or a trace; may be given"
    " more than once.  [default: alpaca and sharegpt]",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(_KINDS),
    help="Samples or beams; may be given more than once.  [default: both]",
)
@click.option(
    "--width",
    "widths",
    multiple=True,
    type=click.IntRange(2, 8),
    help="Sequences a request; may be given more than once.  [default: 2, 4 and 6]",
)
@click.option(
    "--requests",
    type=click.IntRange(min=3),
    default=600,
    show_default=True,
    help="Requests to replay, drawn from the lengths: at least three times --in-flight. With fewer than some"
    " hundred the figures are noisy.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Requests that run at a time.",
)
@click.option(
    "--block-size", type=click.IntRange(1, 256), default=16, show_default=True, help="Tokens a block."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option(
    "--json",
    "json_file",
    type=click.File("w", lazy=False),
    help="Write the figures to FILE too.",
)
def sharing_command(
    sources: tuple[str, ...],
    kinds: tuple[str, ...],
    widths: tuple[int, ...],
    requests: int,
    in_flight: int,
    block_size: int,
    seed: int,
    json_file: TextIO | None,
) -> None:
    """Memory that samples and beams save by sharing KV blocks.

    Replays forced prompt and answer lengths through the engine's own scheduler and block manager, without a
    model, and prints saving = 1 - physical / logical blocks, averaged over time, beside Figure 15 of the
    PagedAttention paper (arXiv 2309.06180); and KV waste, the share of allocated slots that hold no token.
    """
    if requests < 3 * in_flight:
        raise click.BadParameter("must be at least three times --in-flight.", param_hint="--requests")
    try:
        all_lengths = {name: _load(name) for name in sources or BUILT_IN}
    except LengthsError as error:
        click.echo(str(error), err=True)
        raise SystemExit(EXIT_USER_ERROR) from None
    cells = [
        (name, kind, width)
        for name in all_lengths
        for kind, width in (
            ("single", 1),
            *((kind, width) for kind in kinds or _KINDS for width in widths or WIDTHS),
        )
    ]
    console = Console()
    found = []
    for name, kind, width in track(cells, "replaying", console=Console(stderr=True), transient=True):
        drawn = random.Random(seed).choices(all_lengths[name], k=requests)
        found.append(measure(name, drawn, kind, width, in_flight=in_flight, block_size=block_size, seed=seed))
    console.print(_table(found, block_size))
    if json_file is not None:
        report = {"block_size": block_size, "in_flight": in_flight, "seed": seed}
        cells_json = [saving.as_json() for saving in found]
        json_file.write(json.dumps({**report, "cells": cells_json}, indent=2) + "\n")


def _load(name: str) -> list[Lengths]:
    return built_in(name) if name in BUILT_IN else read_lengths(Path(name))


def _table(found: list[Saving], block_size: int) -> Table:
    table = Table(title=f"KV memory saved by sharing, blocks of {block_size} tokens", title_justify="left")
    for column in ("lengths", "kind", "sequences", "saving", "paper", "difference", "waste"):
        table.add_column(column, justify="left" if column in ("lengths", "kind") else "right")
    for cell in found:
        paper = "" if cell.paper is None else f"{cell.paper:.1%}"
        difference = "" if cell.paper is None else f"{(cell.saving - cell.paper) * 100:+.1f} points"
        table.add_row(
            cell.lengths,
            cell.kind,
            str(cell.width),
            f"{cell.saving:.1%}",
            paper,
            difference,
            f"{cell.waste:.2%}",
        )
    return table
