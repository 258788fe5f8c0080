"""Tokens a second of a whole engine, scheduler and sampling included, on a Llama with dummy weights.

Decoding stands beside what reading the weights and the KV once a step allows at the measured copy bandwidth.
The rate of whole runs, prompts included, is what transformers is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.engines import Engine, Step
from benchmarks.gpu_check.figures import COPY, MATMUL
from benchmarks.gpu_check.floors import StepFloor
from benchmarks.gpu_check.models import load_engine
from benchmarks.gpu_check.workload import prompts, speed_name

_TARGET = 0.70


def measure(context: Context) -> None:
    workload = context.scale.workload
    length = workload.prompt_len + workload.output_len
    engine = load_engine(context, max(workload.batches), length)
    for batch in workload.batches:
        with context.case(speed_name(batch)):
            _run(context, engine, batch, seed=2 * batch)  # kernels for these shapes are compiled
            _tell(context, batch, _run(context, engine, batch, seed=2 * batch + 1))


def _run(context: Context, engine: Engine, batch: int, seed: int) -> list[Step]:
    workload = context.scale.workload
    engine.begin(
        prompts(batch, workload.prompt_len, context.scale.model.vocab_size, seed), workload.output_len
    )
    return engine.finish()


def _tell(context: Context, batch: int, steps: Sequence[Step]) -> None:
    workload = context.scale.workload
    assert sum(step.num_tokens for step in steps) == batch * workload.output_len
    decoding = decode_steps(steps, batch)
    decode_rate = batch * len(decoding) / sum(step.seconds for step in decoding)
    mean_len = workload.prompt_len + workload.output_len / 2
    limit = _limit(context, batch, mean_len)
    target = _TARGET if batch == context.scale.judged_batch else None
    name = f"decode tokens/s, batch {batch}"
    context.tell(
        name, decode_rate, "tokens/s", beside="weights and KV, read once", limit=limit, target=target
    )
    whole = batch * workload.output_len / sum(step.seconds for step in steps)
    context.tell(speed_name(batch), whole, "tokens/s")


def decode_steps(steps: Sequence[Step], batch: int) -> list[Step]:
    """Those in which all of ``batch`` sequences got a token, but the first, which may end a prompt."""
    decoding = [step for step in steps if step.num_tokens == batch][1:]
    if not decoding:
        raise RuntimeError(f"there was no step in which all of {batch} sequences decoded")
    return decoding


def _limit(context: Context, batch: int, mean_len: float) -> float | None:
    copy, matmul = context.measured.get(COPY), context.measured.get(MATMUL)
    if copy is None or matmul is None:
        return None
    floor = StepFloor.of(context.scale.model, context.dtype.itemsize)
    return batch / floor.seconds(batch, mean_len, copy * 1e9, matmul * 1e12)
