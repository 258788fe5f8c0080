"""What a step of the real engine is made of: ``python -m benchmarks.cpu_engine --profile``.

An engine core as the engine process builds it, with scheduler, runner and the built-in model, decodes a
batch of sequences at a context, or computes a prompt. It is measured twice: as it is, for the time of a step
or a whole prompt, and with its parts timed, for their shares. Runs on: the main thread, which is the step
thread, with the environment of an engine process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cpu_engine.asked import Load
from benchmarks.cpu_engine.floor import Constants, fastest_format, prefill_s
from benchmarks.cpu_engine.rates import Rates
from benchmarks.cpu_engine.steps import (
    ATTENTION,
    BATCH,
    COLUMNS,
    ELEMENTWISE,
    ENGINE,
    PRODUCTS,
    REST,
    SAMPLER,
    Profile,
    Stage,
    appended,
    cells,
    read_stages,
    write_stages,
)
from benchmarks.cpu_engine.stopwatch import Stopwatch, Timed, standing_in
from benchmarks.report import print_table, processor
from engine.config import EngineConfig, MemorySize
from engine.core import EngineCore
from engine.execution import model_runner
from engine.execution.hardware import default_threads
from engine.execution.parts import Parts
from engine.loading.checkpoint import open_checkpoint
from engine.messages import AddRequest, FromEngine, SamplingParams, StepReport
from engine.reports import parts
from engine.startup import build_core
from engine.wire import encode_frame

_SETTLE = 4  # steps before those that count
_MOST_STEPS = 200
_FEWEST_PROMPTS = 3
_BLOCK = 16  # tokens, by which a sequence's KV is rounded up
STEP = "step"


@dataclass(frozen=True, slots=True)
class Batch:
    """So many sequences, each of which has so many tokens as it begins to decode."""

    size: int
    context: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of so many tokens, by itself, computed until its first token is there."""

    num_tokens: int


Work = Batch | Prompt


class Engine:
    """An engine core that works; ``watch`` is there if its parts are timed."""

    def __init__(self, core: EngineCore, vocab_size: int, watch: Stopwatch | None) -> None:
        self._core = core
        self._vocab_size = vocab_size
        self._watch = watch
        self._random = random.Random(0)

    def time(self, work: Work, num_steps: int) -> list[dict[str, float]]:
        """Seconds of each step or prompt by part; of all of it, as ``STEP``, if nothing is timed."""
        if isinstance(work, Batch):
            return self._decode(work, num_steps)
        return [self._prefill(work, number) for number in range(max(_FEWEST_PROMPTS, num_steps // 5))]

    def _prefill(self, prompt: Prompt, number: int) -> dict[str, float]:
        self._core.add(self._request(f"{prompt} {number}", prompt.num_tokens, max_tokens=1))
        seconds: defaultdict[str, float] = defaultdict(float)
        has_token = False
        while not has_token:
            of_step, report = self._timed_step()
            for part, passed in of_step.items():
                seconds[part] += passed
            has_token = bool(report.deltas)
        return seconds

    def _decode(self, batch: Batch, num_steps: int) -> list[dict[str, float]]:
        names = [f"{batch} {number}" for number in range(batch.size)]
        for name in names:
            self._core.add(self._request(name, batch.context))
        while len(self._step().deltas) < batch.size:
            pass
        for _ in range(_SETTLE):
            self._step()
        found = [self._timed_step()[0] for _ in range(num_steps)]
        for name in names:
            self._core.abort(name)
        self._core.step()
        return found

    def _request(self, name: str, context: int, max_tokens: int = _MOST_STEPS) -> AddRequest:
        prompt = tuple(self._random.randrange(self._vocab_size) for _ in range(context))
        params = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
        return AddRequest(request_id=name, prompt_token_ids=prompt, sampling=params)

    def _timed_step(self) -> tuple[dict[str, float], StepReport]:
        if self._watch is not None:
            self._watch.take()
        started = time.perf_counter()
        report = self._step()
        seconds = time.perf_counter() - started
        if self._watch is None:
            return {STEP: seconds}, report
        within = self._watch.take()
        inside = report.stage_seconds["execute"]
        return {**within, REST: inside - sum(within.values()), ENGINE: seconds - inside}, report

    def _step(self) -> StepReport:
        """As the engine's step loop does it, but for the socket."""
        report = self._core.step()
        assert report is not None, "there is nothing to wait for"
        for part in parts(report):
            encode_frame(FromEngine(1, part))
        return report


class FloorRates(Protocol):
    """Measures what a floor is made of; ``rates.Rates`` is the real one."""

    def constants(self, load: Load) -> Constants: ...


def measure(
    works: Sequence[Work], threads: int, num_steps: int, rates: FloorRates, model: str = ""
) -> list[Profile]:
    """A profile of each, of the built-in model unless another is named."""
    room = _Room.of(works, num_steps, model)
    floors: dict[Work, list[Constants]] = {work: [] for work in works}
    steps: dict[Work, list[dict[str, float]]] = {work: [] for work in works}
    for watch in (None, Stopwatch()):
        with _engine(model, threads, room, watch) as engine:
            for work in works:
                floors[work].append(rates.constants(_load(work)))
                steps[work] += engine.time(work, num_steps)
    return [_profile(work, floors[work], steps[work]) for work in works]


def _load(work: Work) -> Load:
    """The one whose floor this work is compared with."""
    return Load(work.size, work.size) if isinstance(work, Batch) else Load(1, 1, input_len=work.num_tokens)


def _profile(work: Work, floors: Sequence[Constants], steps: Sequence[dict[str, float]]) -> Profile:
    names = dict.fromkeys(name for step in steps for name in step)
    medians = {name: 1000 * statistics.median(step[name] for step in steps if name in step) for name in names}
    step = medians.pop(STEP)
    if isinstance(work, Prompt):
        products = min(prefill_s(floor, work.num_tokens) for floor in floors)
        return Profile(
            batch=None, context=work.num_tokens, step=step, parts=medians,
            floor_products=1000 * products, floor_kv=0.0, weights=floors[0].prefill_format,
        )  # fmt: skip
    best = min(floors, key=lambda floor: floor.fastest_products_s)
    return Profile(
        batch=work.size, context=work.context, step=step, parts=medians,
        floor_products=1000 * best.fastest_products_s,
        floor_kv=1000 * best.kv_s(work.size * work.context),
        weights=fastest_format(best.products_s),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Room:
    """What the largest of them takes."""

    max_num_seqs: int
    pool: MemorySize

    @classmethod
    def of(cls, works: Sequence[Work], num_steps: int, model: str) -> _Room:
        """A window's worth more than needed, as an engine must have at least that."""
        config = open_checkpoint(model, "auto", 0).config
        batches = [work for work in works if isinstance(work, Batch)]
        tokens = max(
            (batch.size * (batch.context + _SETTLE + num_steps + _BLOCK) for batch in batches), default=0
        )
        most_bytes = 4  # of a number, in float32
        token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * most_bytes
        pool = MemorySize(num_bytes=(tokens + config.max_position_embeddings) * token_bytes)
        return cls(max((batch.size for batch in batches), default=1), pool)


@contextlib.contextmanager
def _engine(model: str, threads: int, room: _Room, watch: Stopwatch | None) -> Iterator[Engine]:
    config = EngineConfig(
        model=model, device="cpu", device_kv=room.pool, threads=threads, max_num_seqs=room.max_num_seqs
    )
    os.environ.setdefault("NUMBA_NUM_THREADS", str(threads))
    with contextlib.ExitStack() as scope:
        if watch is not None:
            _time_parts(scope, watch)
        core, info = build_core(config, lambda *_: None, time.perf_counter, lambda: None)
        scope.callback(core.close, 0.0)
        gc.collect()
        gc.freeze()  # as the engine process does once it has loaded
        scope.callback(gc.unfreeze)
        yield Engine(core, info.vocab_size, watch)


def _time_parts(scope: contextlib.ExitStack, watch: Stopwatch) -> None:
    """What is made until the scope ends is timed, and so is what a runner calls.

    By quantized weights a norm, a product and what follows it are one call, which counts as a product.
    """
    ops, attention = Parts.ops, Parts.attention

    def timed_ops(made: Parts, *arguments: Any) -> Any:
        return _TimedOps(ops(made, *arguments), watch)

    def timed_attention(made: Parts, *arguments: Any) -> Any:
        return Timed(attention(made, *arguments), watch, ATTENTION, "begin_step", "forward")

    scope.enter_context(standing_in(Parts, "ops", timed_ops))
    scope.enter_context(standing_in(Parts, "attention", timed_attention))
    scope.enter_context(_packed_products_timed(watch))
    for name, part in (("sample_chunks", SAMPLER), ("build_model_input", BATCH)):
        timed = watch.timed(part, getattr(model_runner, name))
        scope.enter_context(standing_in(model_runner, name, timed))


def _packed_products_timed(watch: Stopwatch) -> AbstractContextManager[None]:
    from engine.packed import kernels, llama  # numba takes its number of threads when it is first imported

    timed = Timed(kernels, watch, PRODUCTS, "project_normed", "add_projected", "add_mlp")
    return standing_in(llama, "kernels", timed)


class _TimedOps:
    """Operations that make timed parts; what else they can make is as it is, and counts with the rest."""

    def __init__(self, ops: Any, watch: Stopwatch) -> None:
        self._ops = ops
        self._watch = watch

    def linear(self, *arguments: Any, **named: Any) -> Any:
        return Timed(self._ops.linear(*arguments, **named), self._watch, PRODUCTS)

    def norm(self, *arguments: Any, **named: Any) -> Any:
        return Timed(self._ops.norm(*arguments, **named), self._watch, ELEMENTWISE, "after")

    def activation(self) -> Any:
        return self._watch.timed(ELEMENTWISE, self._ops.activation())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16, 64], metavar="B")
    parser.add_argument("--context", type=int, default=256, metavar="TOKENS", help="of each sequence (256)")
    parser.add_argument(
        "--prompts", type=int, nargs="*", default=[1024], metavar="TOKENS", help="prompts of so many (1024)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=30,
        metavar="N",
        help="that count, of each batch; of prompts a fifth, at least three (30)",
    )
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument(
        "--after", default="now", metavar="TEXT", help="the step of work that this comes after"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="add it to the table that is kept in FILE")
    options = parser.parse_args()
    if not 0 < options.steps <= _MOST_STEPS - _SETTLE:
        parser.error(f"--steps is at most {_MOST_STEPS - _SETTLE}")
    works: list[Work] = [
        *(Batch(size, options.context) for size in options.batches),
        *map(Prompt, options.prompts),
    ]
    rates = Rates(open_checkpoint("", "auto", 0).config, options.threads)
    profiles = measure(works, options.threads, options.steps, rates)
    stage = Stage(after=options.after, machine=processor(), profiles=profiles)
    columns, *rows = zip(COLUMNS[1:], *(row[1:] for row in cells([stage])), strict=True)
    print_table("Decode steps and prompts of the CPU engine, in ms", columns, rows)
    if options.json is not None:
        write_stages(options.json, appended(read_stages(options.json), stage))


if __name__ == "__main__":
    main()
