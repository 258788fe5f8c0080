"""Tokens a second of a whole engine, scheduler and sampling included, on a Llama with dummy weights.

Decoding stands beside what reading the weights and the KV once a step allows at the rate of reads or of
copies that was measured, whichever is larger. The rate of whole runs, from handing in the prompts to having
the last token, is what transformers is compared with. Several runs, by the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu_check.captures import captures_told
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.engines import Engine, Step
from benchmarks.gpu_check.figures import COPY, MATMUL, READ
from benchmarks.gpu_check.floors import StepFloor
from benchmarks.gpu_check.models import load_engine
from benchmarks.gpu_check.timing import Timing
from benchmarks.gpu_check.workload import WARM_UP_SEED, prompts, seeds, speed_name

_TARGET = 0.70


def measure(context: Context) -> None:
    workload = context.scale.workload
    length = workload.prompt_len + workload.output_len
    with captures_told(context):
        engine = load_engine(context, max(workload.batches), length)
    for batch in workload.batches:
        with context.case(speed_name(batch)):
            _run(context, engine, batch, WARM_UP_SEED)  # kernels for these shapes are compiled
            _tell(
                context, batch, [_run(context, engine, batch, seed) for seed in seeds(batch, workload.runs)]
            )


@dataclass(frozen=True, slots=True)
class Run:
    """``seconds``: of all of it, also of what is between steps."""

    seconds: float
    steps: list[Step]


def _run(context: Context, engine: Engine, batch: int, seed: int) -> Run:
    workload = context.scale.workload
    asked = prompts(batch, workload.prompt_len, context.scale.model.vocab_size, seed)
    started = time.perf_counter()
    engine.begin(asked, workload.output_len)
    steps = engine.finish()
    return Run(time.perf_counter() - started, steps)


def _tell(context: Context, batch: int, runs: Sequence[Run]) -> None:
    workload = context.scale.workload
    asked_for = batch * workload.output_len
    assert all(sum(step.num_tokens for step in run.steps) == asked_for for run in runs)
    decoding = Timing.of(
        [statistics.mean(step.seconds for step in decode_steps(run.steps, batch)) for run in runs]
    )
    mean_len = workload.prompt_len + workload.output_len / 2
    limit = _limit(context, batch, mean_len)
    target = _TARGET if batch == context.scale.judged_batch else None
    name = f"decode tokens/s, batch {batch}"
    context.tell(
        name,
        batch / decoding.median_s,
        "tokens/s",
        beside="weights and KV, read once",
        limit=limit,
        target=target,
        spread=decoding.spread,
    )
    context.tell_rate(speed_name(batch), asked_for, Timing.of([run.seconds for run in runs]), "tokens/s")


def decode_steps(steps: Sequence[Step], batch: int) -> list[Step]:
    """Those in which all of ``batch`` sequences got a token, but the first, which may end a prompt."""
    decoding = [step for step in steps if step.num_tokens == batch][1:]
    if not decoding:
        raise RuntimeError(f"there was no step in which all of {batch} sequences decoded")
    return decoding


def _limit(context: Context, batch: int, mean_len: float) -> float | None:
    bandwidth = max(context.measured.get(name, 0.0) for name in (COPY, READ))
    matmul = context.measured.get(MATMUL)
    if not bandwidth or matmul is None:
        return None
    floor = StepFloor.of(context.scale.model, context.dtype.itemsize)
    return batch / floor.seconds(batch, mean_len, bandwidth * 1e9, matmul * 1e12)
