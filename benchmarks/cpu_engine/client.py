"""The one client of all servers: the load test's own measuring, in a process of its own.

``python -m benchmarks.cpu_engine.client`` reads what to ask, a JSON object a line, and answers each with a
line. A server is looked at once, when it is first asked. Prompts have words of their own each time, so that
no prefix cache knows them; answers are greedy and have the length that was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import uvloop

from benchmarks.child import module_process
from benchmarks.cpu_engine.asked import Load
from benchmarks.cpu_engine.results import Seen
from loadtest.drivers.target import Target
from loadtest.measuring.bench import AskedLoad, Bench, Measuring
from loadtest.measuring.progress import Display
from loadtest.results import Distribution, RunReport
from loadtest.spec import WorkloadSpec

_END_S = 10.0
_MEASURING = Measuring(slo=None, num_warmup=1, keep_cache=False)


class Question(msgspec.Struct, frozen=True):
    """``number``: of the round; with it go the words of the prompts."""

    url: str
    load: Load
    number: int


class ClientError(Exception):
    """A measurement could not be made. The message says why."""


class Client:
    """The process, as its owner sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, question: Question) -> Seen:
        """Blocks until it is measured. Raises ClientError."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        self._process.stdin.flush()
        found = msgspec.json.decode(
            self._process.stdout.readline() or b'"the client is gone"', type=Seen | str
        )
        if isinstance(found, str):
            raise ClientError(found)
        return found


@contextlib.contextmanager
def client() -> Iterator[Client]:
    """Runs until the scope ends. Ctrl-C is its owner's."""
    with module_process("benchmarks.cpu_engine.client", (), _END_S, start_new_session=True) as process:
        yield Client(process)


class _Asker:
    """What the process does. Runs on: its event loop."""

    def __init__(self) -> None:
        self._benches: dict[str, Bench] = {}

    async def answer(self, question: Question) -> Seen:
        """Raises whatever the load test raises for a server that cannot be measured."""
        load = question.load
        bench = await self._bench(question.url)
        spec = WorkloadSpec(
            input_len=str(load.input_len), output_len=str(load.output_len), num_requests=load.num_requests
        )
        users = AskedLoad(users=load.users)
        take = await bench.take(spec, users, "", question.number)
        assert take is not None, "nothing stops it"
        return _seen(bench.report(spec, users, [take]))

    async def _bench(self, url: str) -> Bench:
        if url not in self._benches:
            target = Target(url, api="completions", extra={"temperature": 0.0})
            display = Display(io.StringIO())
            self._benches[url] = await Bench.of(target, _MEASURING, display, asyncio.Event(), sys.argv)
        return self._benches[url]


def _seen(report: RunReport) -> Seen:
    """Raises ClientError for a run of which nothing is to be had."""
    summary = report.summary
    if summary.failed or summary.ttft_ms is None or summary.output_tok_s is None:
        raise ClientError(f"{summary.failed} of {summary.asked} requests failed: {summary.failures}")
    faults = [*report.schedule.faults, *([] if report.usage.within else [report.usage.note])]
    return Seen(
        output_tok_s=summary.output_tok_s,
        ttft_ms=summary.ttft_ms.p50,
        itl_ms=_percentile(summary.itl_ms, "p50"),
        itl_p99_ms=_percentile(summary.itl_ms, "p99"),
        faults=faults,
    )


def _percentile(found: Distribution | None, name: str) -> float | None:
    return None if found is None else float(getattr(found, name))


def _said(found: Seen | str) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        asker = _Asker()
        for line in sys.stdin.buffer:
            question = msgspec.json.decode(line, type=Question)
            try:
                _said(runner.run(asker.answer(question)))
            except Exception as error:  # of whatever kind, it is this measurement's
                _said(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
