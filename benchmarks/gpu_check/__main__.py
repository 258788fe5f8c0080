"""``python -m benchmarks.gpu_check``: says what is not installed, then checks (``command.py``)."""

from __future__ import annotations

import sys

from benchmarks.gpu_check import packages


def main() -> int:
    without = packages.missing()
    if without:
        print(packages.told(without), file=sys.stderr, flush=True)
    if not packages.can_begin(without):
        return 2
    # Not before: it imports what may be missing.
    from benchmarks.gpu_check import command

    return command.main()


if __name__ == "__main__":
    sys.exit(main())
