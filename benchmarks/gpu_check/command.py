"""What the GPU engine reaches, beside what the card can do: ``python -m benchmarks.gpu_check``, ``make
gpu-check``, from the repository's root.

First the limits of this card and its link are measured, then the ``gpu``-marked tests run, then kernels,
swaps and the whole engine are measured beside those limits. docs/gpu.md says what each row means. The table
comes last, also after an interrupt; the JSON is written anew after each part.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.gpu_check import packages, parts, table
from benchmarks.gpu_check.figures import (
    DRY_RUN,
    Outcome,
    PartReport,
    Report,
    as_json,
    held_against_the_larger,
)
from benchmarks.gpu_check.running import Runner, has_no_gpu, left_out, set_environment
from benchmarks.report import check_place, print_table


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if everything was measured, met or not; 1 if something was not; 2 if it cannot begin: wrong
    arguments, no GPU, nowhere to write."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        chosen = parts.chosen(parts.SWEEP if options.sweep else parts.CHECK, tuple(options.parts))
        _hold_to_places(options.json, options.logs)
    except ValueError as error:
        parser.error(f"{error}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what runs, and still prints the table
    set_environment(options.device)
    if options.device == "cpu":
        _tell_of_numpy(metadata.version("numpy"))
    scale = DRY_RUN if options.device == "cpu" else "quick" if options.quick else "full"
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.logs or Path(scratch)
        deadline = time.monotonic() + options.minutes * 60
        if options.device == "cuda" and has_no_gpu(directory / "gpu.log"):
            parser.error(f"torch of {sys.executable} finds no GPU; --device cpu is a dry run without one.")
        return _check(chosen, Runner(options.device, scale, directory, deadline), options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run at tiny sizes"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--sweep", action="store_true", help="measure variants of the kernels instead")
    parser.add_argument(
        "--minutes", type=_minutes, default=parts.TOTAL_S / 60, help="for all parts (default: %(default).3g)"
    )
    parser.add_argument("--logs", type=Path, help="directory to keep the parts' output in")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="measure only these (limits come first anyway)"
    )
    return parser


def _tell_of_numpy(version: str) -> None:
    if packages.is_too_new_to_interpret(version):
        told = f"Triton interprets kernels with numpy below 2.4 only; here is {version}, so they will fail."
        print(told, file=sys.stderr, flush=True)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return minutes


def _hold_to_places(path: Path | None, logs: Path | None) -> None:
    """Make the directories of what is to be written. Raises ValueError where that cannot be."""
    places = (("--json", path, path and path.parent), ("--logs", logs, logs))
    for option, named, directory in places:
        if named is None or directory is None:
            continue
        with contextlib.suppress(OSError):  # which shows in a moment
            directory.mkdir(parents=True, exist_ok=True)
        check_place(option, named, directory)
    if path is not None and path.is_dir():
        raise ValueError(f"--json {path} is a directory")


def _check(chosen: Sequence[parts.Part], runner: Runner, path: Path | None) -> int:
    ended: list[PartReport] = []
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    is_written = True

    def report() -> Report:
        left = [left_out(part.name, "the check ended before it began") for part in chosen[len(ended) :]]
        parts_of = held_against_the_larger([*ended, *left])
        return Report(date=date, scale=runner.scale, machine=runner.facts, parts=parts_of)

    try:
        for part in chosen:
            print(f"{part.name} ... ({runner.left_s:.0f} s left)", file=sys.stderr, flush=True)
            ended.append(runner.run(part))
            is_written = _write(path, report())
            if ended[-1].outcome is Outcome.INTERRUPTED:
                break
    except KeyboardInterrupt:
        is_written = _write(path, report())
    print_table(table.title(report()), table.COLUMNS, table.rows(report()))
    return int(report().is_incomplete or not is_written)


def _write(path: Path | None, report: Report) -> bool:
    """Whole or not at all. What cannot be written is told, and costs neither the table nor the next parts."""
    if path is None:
        return True
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(json.dumps(as_json(report), indent=2, ensure_ascii=False) + "\n")
        fresh.replace(path)
    except OSError as error:
        print(f"--json {path} cannot be written: {error.strerror}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            fresh.unlink()
        return False
    return True
