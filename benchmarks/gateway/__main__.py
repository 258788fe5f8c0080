"""What one core carries in front of an engine: ``python -m benchmarks.gateway``.

``tidegate serve --engine scripted:RATE`` makes up tokens at a set rate, and a process that parses nothing
reads them off raw sockets. Parts: ``carry``, the gateway's processor time for a token beside that of a bare
aiohttp loop; ``stages`` of it; the ``latency`` it adds; ``memory`` of a stream; a ``ramp`` to thousands of
them. Gateway, engine and reader share this machine: only processor time and ratios of neighbours mean much.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.gateway.measuring import KINDS, measure
from benchmarks.gateway.scales import FULL, PARTS, QUICK
from benchmarks.report import run_main, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--quick", action="store_true", help="a few streams for a moment: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    arguments = parser.parse_args()
    found = measure(arguments.parts, QUICK if arguments.quick else FULL, arguments.kinds)
    found.print()
    write_json(arguments.json, found.as_json())


if __name__ == "__main__":
    run_main(main)
