"""What the GPU engine reaches, beside what the card can do: ``python -m benchmarks.gpu_check``, ``make
gpu-check``.

First the limits of this card and its link are measured, then the ``gpu``-marked tests run, then kernels,
swaps and the whole engine are measured beside those limits. docs/gpu.md says what each row means. The table
comes last, also after an interrupt; the JSON is written anew after each part.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check import parts, table
from benchmarks.gpu_check.figures import PartReport, Report, as_json, held_against_the_larger
from benchmarks.gpu_check.running import Runner, set_environment
from benchmarks.report import print_table


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if everything was measured, met or not; 1 if something failed; 2 for wrong arguments."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        chosen = parts.chosen(parts.SWEEP if options.sweep else parts.CHECK, tuple(options.parts))
    except ValueError as error:
        parser.error(f"{error}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what runs, and still prints the table
    set_environment(options.device)
    scale = "dry run" if options.device == "cpu" else "quick" if options.quick else "full"
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.logs or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + options.minutes * 60
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
        "--minutes", type=float, default=parts.TOTAL_S / 60, help="for all parts (default: %(default).3g)"
    )
    parser.add_argument("--logs", type=Path, help="directory to keep the parts' output in")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="measure only these (limits come first anyway)"
    )
    return parser


def _check(chosen: Sequence[parts.Part], runner: Runner, path: Path | None) -> int:
    is_dry_run = runner.device == "cpu"
    ended: list[PartReport] = []
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")

    def report() -> Report:
        parts_of = held_against_the_larger(ended)
        return Report(date=date, is_dry_run=is_dry_run, machine=runner.facts, parts=parts_of)

    try:
        for part in chosen:
            print(f"{part.name} ... ({runner.left_s:.0f} s left)", file=sys.stderr, flush=True)
            ended.append(runner.run(part))
            _write(path, report())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print_table(table.title(report()), table.COLUMNS, table.rows(report()))
    return int(report().has_failed or len(ended) < len(chosen))


def _write(path: Path | None, report: Report) -> None:
    """Whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(as_json(report), indent=2, ensure_ascii=False) + "\n")
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
