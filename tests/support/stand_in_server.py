"""A scripted server that is started as a user's is: ``python -m tests.support.stand_in_server PORT GAP_S``.

It has a child process, as servers do, and ends with a request to.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import uvloop

from benchmarks.scripted_openai import Reply, Script
from benchmarks.scripted_openai_process import House, Peer


async def _serve(port: int, gap_s: float) -> None:
    house = House(Script(replies=(Reply(first_s=gap_s, gap_s=gap_s),)))
    await asyncio.get_running_loop().create_server(lambda: Peer(house), "127.0.0.1", port, backlog=100)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]):
        uvloop.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
