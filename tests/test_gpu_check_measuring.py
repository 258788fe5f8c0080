"""How the check of a GPU measures: batches as the engine's, times by a device's events, the model that others
have."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from benchmarks.gpu_check import captures, generation, gpu_tests, steps, timing
from benchmarks.gpu_check.attention_inputs import attention_shape, make_batch, make_pool
from benchmarks.gpu_check.attention_rates import layers_beyond_cache
from benchmarks.gpu_check.captures import captures_told
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.engines import Engine, Step
from benchmarks.gpu_check.figures import COPY, MATMUL, READ, Failure, Figure, Line
from benchmarks.gpu_check.generation import decode_steps
from benchmarks.gpu_check.interference import take_turns
from benchmarks.gpu_check.link import Link, TimedPinning
from benchmarks.gpu_check.models import _Builder, load_decoding_engine, load_engine
from benchmarks.gpu_check.parts import Settings
from benchmarks.gpu_check.scales import BLOCK_SIZE
from benchmarks.gpu_check.steps import covered
from benchmarks.gpu_check.swap import tell_pinning
from benchmarks.gpu_check.swap_load import WAYS, SwapLoad
from benchmarks.gpu_check.tested import Phase, by_name
from benchmarks.gpu_check.timing import Timing, timed, timed_in_graph
from benchmarks.gpu_check.transformers_models import load_model, watch
from benchmarks.gpu_check.workload import prompts, seeds
from engine.execution.gpu_runner import GpuRunner
from tests.support.paged_attention import metadata
from tiering.types import TransferJob, TransferOutcome, TransferResult

CUDA: Any = SimpleNamespace(type="cuda")  # to the clock; nothing is allocated on it


@pytest.fixture
def told() -> list[Line]:
    return []


@pytest.fixture
def context(told: list[Line]) -> Context:
    return Context(Settings(device="cpu", scale="dry run", measured={"copy": 10.0}), told.append)


# ---- a device that is not there ----------------------------------------------------------------------


class FakeDevice:
    """Executes what is enqueued in order, by a clock of its own; graphs hold what was enqueued for them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._captured: list[float] | None = None

    def run(self, seconds: float) -> None:
        if self._captured is None:
            self.seconds += seconds
        else:
            self._captured.append(seconds)

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph) -> Iterator[None]:
        graph.device, self._captured = self, []
        yield
        graph.work, self._captured = self._captured, None


class FakeGraph:
    device: FakeDevice
    work: list[float]

    def replay(self) -> None:
        for seconds in self.work:
            self.device.run(seconds)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    made = FakeDevice()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = made.seconds

        def elapsed_time(self, later: Event) -> float:
            return 1000 * (later.at - self.at)

    fake = SimpleNamespace(
        Event=Event, CUDAGraph=FakeGraph, graph=made.graph, synchronize=lambda device=None: None
    )
    monkeypatch.setattr(timing.torch, "cuda", fake)
    return made


@pytest.mark.parametrize("seconds", [2e-5, 3e-3])
def test_times_are_those_of_one_call(device: FakeDevice, seconds: float) -> None:
    found = timed(lambda number: device.run(seconds * (1 + number % 2)), CUDA, repeats=9)
    assert seconds <= found.median_s * (1 + 1e-6) <= 2 * seconds * (1 + 2e-6)
    steady = timed(lambda _: device.run(seconds), CUDA, repeats=9)
    assert steady.median_s == pytest.approx(seconds) and steady.spread < 1e-6


def test_a_device_is_kept_busy_for_as_long_as_is_said(device: FakeDevice) -> None:
    started = time.perf_counter()
    timing.keep_busy(lambda _: device.run(1e-6), CUDA, 0.05)
    assert time.perf_counter() - started >= 0.05 and device.seconds > 0


def test_a_graph_goes_once_through_all_inputs(device: FakeDevice) -> None:
    seen: list[int] = []

    def work(number: int) -> None:
        seen.append(number)
        device.run(1e-5 * (1 + number))

    found = timed_in_graph(work, CUDA, repeats=5, num_inputs=4)
    assert found.median_s == pytest.approx(2.5e-5)
    assert seen == [0, 1, 2, 3] * 2, "it is called to compile and to be captured, and not when it is timed"


def test_the_spread_is_the_middle_half() -> None:
    assert Timing.of([1.0, 2.0, 3.0, 4.0, 100.0]).median_s == 3.0
    assert Timing.of([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 9.0]).spread == 0.0
    assert Timing.of([2.0, 3.0]).spread == pytest.approx(0.4)


# ---- what is told ------------------------------------------------------------------------------------


def test_a_measurement_that_fails_is_told_and_the_next_begins(context: Context, told: list[Line]) -> None:
    with context.case("first"):
        context.tell("before", 1.0, "s")
        raise ValueError("no\n  room")
    with context.case("second"):
        context.tell("after", 8.0, "GB/s", beside="copy", target=0.8)
    assert told == [
        Figure(name="before", value=1.0, unit="s"),
        Failure(name="first", reason="ValueError: no room"),
        Figure(name="after", value=8.0, unit="GB/s", beside="copy", limit=10.0, target=0.8),
    ]
    assert context.has_failed


def test_rates_are_in_their_unit(context: Context, told: list[Line]) -> None:
    context.tell_rate("copied", 4e9, Timing(2.0, 0.1), "GB/s")
    context.tell_rate("multiplied", 3e12, Timing(1.5, 0.1), "TFLOP/s")
    assert [line.value for line in told if isinstance(line, Figure)] == [2.0, 2.0]


def test_tests_count_by_their_worst_phase(context: Context, told: list[Line]) -> None:
    tested = by_name(
        [
            Phase("a", "passed"),
            Phase("b", "passed"),
            Phase("b", "failed", "AssertionError: no"),
            Phase("b", "passed"),
            Phase("c", "skipped"),
        ]
    )
    gpu_tests._tell(context, tested, 1)
    passed, skipped, failure = told
    assert isinstance(passed, Figure) and (passed.value, passed.limit) == (1, 2)
    assert isinstance(skipped, Figure) and skipped.value == 1
    assert failure == Failure(name="b", reason="AssertionError: no")
    gpu_tests._tell(context, tested[:1], None)
    assert told[-1] == Failure(name="all tests", reason="not done in time; 1 ran")
    gpu_tests._tell(context, tested[:1], 4)
    assert isinstance(told[-1], Failure) and "exit code 4" in told[-1].reason


def test_a_small_context_is_measured_over_layers_that_no_cache_holds() -> None:
    cache = 50 * 2**20
    layer = 1024 * 2 * 8 * 128 * 2
    assert layers_beyond_cache(layer, cache, 8, 32) * layer > 2 * cache - layer
    assert layers_beyond_cache(64 * layer, cache, 8, 32) == 8
    assert layers_beyond_cache(layer // 100, cache, 8, 32) == 32, "there are no more"
    assert layers_beyond_cache(layer, 0, 8, 32) == 8


# ---- batches and steps -------------------------------------------------------------------------------


def test_batches_are_described_as_the_engine_does(context: Context) -> None:
    pool = make_pool(context, 200)
    assert torch.isfinite(pool).all() and pool.std() > 0.9
    spans = [(20, 1), (15, 1), (3, 18), (0, 1)]
    batch = make_batch(context, attention_shape(context.scale.model), pool.shape[0], spans)
    found = batch.metadata
    tables = found.block_tables.tolist()
    needed = [-(-(before + rows) // BLOCK_SIZE) for before, rows in spans]
    used = [table[:count] for table, count in zip(tables, needed, strict=True)]
    assert len({block for table in used for block in table}) == sum(map(len, used)), "a block is shared"
    expected = metadata(spans, tables, BLOCK_SIZE)
    for name in ("query_start", "context_start", "seq_lens", "slot_mapping"):
        mine, wanted = getattr(found, name), getattr(expected, name)
        assert mine.dtype == wanted.dtype and torch.equal(mine, wanted), name
    assert found.num_decodes == 2


def test_sequences_share_blocks_only_where_there_are_too_few(context: Context) -> None:
    batch = make_batch(context, attention_shape(context.scale.model), 5, [(47, 1)] * 4)
    counts = torch.bincount(batch.metadata.block_tables.flatten(), minlength=5)
    assert counts.sum() == 12 and counts.max() - counts.min() <= 1
    assert all(len(set(table)) == 3 for table in batch.metadata.block_tables.tolist())


def test_decoding_is_where_all_sequences_get_a_token_but_for_the_first_time() -> None:
    found = [Step(9.0, 1), Step(9.0, 3), Step(1.0, 3), Step(2.0, 3), Step(3.0, 2)]
    assert decode_steps(found, 3) == found[2:4]
    with pytest.raises(RuntimeError, match="no step in which all of 3 sequences decoded"):
        decode_steps(found[:2], 3)


def test_the_device_is_at_work_where_any_of_its_work_is() -> None:
    assert covered([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4
    assert covered([]) == 0


def test_the_device_is_at_work_in_what_a_trace_says_it_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(start: float, end: float, on: DeviceType = DeviceType.CUDA, **rest: bool) -> SimpleNamespace:
        span = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(device_type=DeviceType(int(on)), time_range=span, **rest)

    events = [
        event(0, 400),
        event(100, 500),
        event(1000, 1500, is_user_annotation=False),
        event(2000, 9000, is_user_annotation=True),
        event(0, 9000, DeviceType.CPU),
    ]
    monkeypatch.setattr(
        steps, "profile", lambda activities: contextlib.nullcontext(SimpleNamespace(events=lambda: events))
    )
    monkeypatch.setattr(steps.torch.cuda, "synchronize", lambda: None)
    engine: Any = SimpleNamespace(step=lambda: None)
    assert steps._busy_s(engine) == pytest.approx(1e-3 / 10)
    del events[:4]
    with pytest.raises(RuntimeError, match="nothing that the device executed"):
        steps._busy_s(engine)


def test_the_clock_runs_from_the_first_prompt_to_the_last_token(context: Context, told: list[Line]) -> None:
    """Also between steps: what one waits for there, users wait for."""
    workload = context.scale.workload
    step = Step(0.001, 2)

    def finish() -> list[Step]:
        time.sleep(0.05)
        return [step] * workload.output_len

    engine: Any = SimpleNamespace(begin=lambda *_: time.sleep(0.05), finish=finish)
    generation._tell(context, 2, [generation._run(context, engine, 2, seed) for seed in seeds(2, 3)])
    decoded, whole = told
    assert isinstance(decoded, Figure) and decoded.value == pytest.approx(2 / 0.001)
    assert isinstance(whole, Figure) and whole.value < 2 * workload.output_len / 0.1
    assert whole.spread is not None


def test_the_roofline_is_of_what_the_memory_was_seen_to_do(context: Context) -> None:
    context.measured |= {COPY: 4000.0, MATMUL: 800.0}
    of_copies = generation._limit(context, 2, 10.0)
    context.measured[READ] = 4400.0
    of_reads = generation._limit(context, 2, 10.0)
    assert of_copies is not None and of_reads is not None and of_reads > of_copies
    context.measured[READ] = 3000.0
    assert generation._limit(context, 2, 10.0) == of_copies
    context.measured.clear()
    assert generation._limit(context, 2, 10.0) is None


def test_steps_are_timed_at_the_lengths_that_are_traced() -> None:
    lengths = itertools.count()
    engine: Any = SimpleNamespace(step=lambda: Step(float(next(lengths)), 1))
    timed_s, traced = steps._around(engine, 60, lambda made: [made.step().seconds for _ in range(10)])  # type: ignore[arg-type, return-value]
    assert statistics.mean(timed_s) == statistics.mean(traced)  # type: ignore[type-var]


def test_the_attention_that_others_computed_with_is_told(context: Context) -> None:
    model = load_model(context)
    watched = watch(model)
    assert str(watched) == "unknown attention, without CUDA graphs"
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # as continuous batching does, for as long as it runs
    with torch.inference_mode():
        model(torch.tensor([[5, 6]]))
    model.set_attn_implementation(before)
    assert str(watched) == "eager attention, without CUDA graphs"


def test_what_graphs_cost_is_told(
    context: Context, told: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[object] = []
    monkeypatch.setattr(GpuRunner, "capture_graphs", lambda runner, *rest: captured.append(rest))
    free = iter([5 * 2**20, 2 * 2**20])
    monkeypatch.setattr(captures, "_free_bytes", lambda _: next(free))
    runner: Any = object.__new__(GpuRunner)
    with captures_told(context):
        runner.capture_graphs("recorder", "progress")
    assert captured == [("recorder", "progress")]
    assert [(line.value, line.unit) for line in told[1:] if isinstance(line, Figure)] == [(3.0, "MiB")]
    runner.capture_graphs("recorder")
    assert len(told) == 2, "it goes on"


def test_what_pinning_costs_is_told_by_the_gib(context: Context, told: list[Line]) -> None:
    pinned: list[tuple[int, int]] = []
    pinning = TimedPinning(
        SimpleNamespace(pin=lambda *call: pinned.append(call), unpin=lambda address: pinned.clear())
    )
    tell_pinning(context, pinning)
    assert not told, "nothing was pinned"
    pinning.pin(0, 2**28)
    pinning.pin(2**28, 2**28)
    assert pinned == [(0, 2**28), (2**28, 2**28)]
    pinning.seconds = [0.1, 0.3]
    tell_pinning(context, pinning)
    by_gib, by_call = told
    assert isinstance(by_gib, Figure) and by_gib.value == pytest.approx(0.8)
    assert isinstance(by_call, Figure) and by_call.value == pytest.approx(200)
    pinning.unpin(0)
    assert not pinned


# ---- models ------------------------------------------------------------------------------------------


def texts_of(engine: Engine, asked: list[list[int]], output_len: int) -> list[list[int]]:
    engine.begin(asked, output_len)
    found: dict[str, list[int]] = {}
    while engine.has_work:
        report = engine.core.step()
        assert report is not None
        for delta in report.deltas:
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
    return [found[name] for name in sorted(found)]


def test_what_is_compared_is_the_same_model(context: Context) -> None:
    """Ours, in both ways of putting it together, and that of transformers."""
    asked = prompts(2, 9, context.scale.model.vocab_size, seed=1)
    other = load_model(context)
    with torch.inference_mode():
        whole = other.generate(
            torch.tensor(asked), max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0
        )
    expected = whole[:, 9:].tolist()
    assert texts_of(load_engine(context, 2, 16), asked, 3) == expected
    builder = _Builder(context, 2, 16, 64)
    as_on_a_gpu = Engine(context, builder.on_gpu(9), 9, 2, 16, 64)
    assert texts_of(as_on_a_gpu, asked, 3) == expected


# ---- swaps beside decodes ----------------------------------------------------------------------------


class SlowMover:
    """Moves nothing; what it is handed has ended two polls later. Beginning a move takes the host 1 ms."""

    parallelism = 1

    def __init__(self) -> None:
        self.seen: list[TransferJob] = []
        self._polls: list[list[TransferJob]] = [[], []]

    def submit(self, jobs: list[TransferJob]) -> None:
        places = [(job.kind, job.source) for poll in self._polls for job in poll]
        assert not any((job.kind, job.source) in places for job in jobs), "a block is moved twice at a time"
        self.seen += jobs
        self._polls[-1] = self._polls[-1] + list(jobs)
        time.sleep(0.001 * len(jobs))

    def poll(self) -> list[TransferResult]:
        ended, *self._polls = [*self._polls, []]
        return [TransferResult(job.transfer_id, TransferOutcome.DONE) for job in ended]

    def wait(self, timeout_s: float) -> None:
        pass


@pytest.fixture
def load(context: Context) -> SwapLoad:
    link = Link(context, make_pool(context, 2 * context.scale.swap_blocks * BLOCK_SIZE))
    link.mover.close()
    link.mover = SlowMover()  # type: ignore[assignment]
    return SwapLoad(link)


def test_swaps_are_kept_under_way_both_ways(load: SwapLoad, context: Context) -> None:
    num_blocks = context.scale.swap_blocks
    assert load.poll() == [] and load.num_pending == 0, "it has begun by itself"
    load.begin()
    for _ in range(5):
        assert load.poll() == []
        assert load.num_pending == 2 * num_blocks, "the link has not enough to do"
    assert 0.001 * 2 * num_blocks < load.host_s
    load.end()
    assert load.num_pending == 0
    mover: Any = load._lanes[0].mover
    assert load.moved_bytes == len(mover.seen) * load._block_bytes
    assert {job.kind for job in mover.seen} == set(WAYS)


def test_what_swaps_cost_the_step_thread_is_in_the_time_of_a_step(context: Context, load: SwapLoad) -> None:
    engine = load_decoding_engine(context, 9, 8, load)
    found = take_turns(engine, load, rounds=1, steps=4)
    assert (len(found.alone_s), len(found.beside_s), len(found.first_s)) == (4, 3, 1)
    begun_s = 0.001 * 2 * context.scale.swap_blocks
    assert min(found.first_s) > begun_s
    assert all(step_s > host_s for step_s, host_s in zip(found.beside_s, found.host_s, strict=True))
    assert found.swapped_bytes > 0 and max(found.host_s) > begun_s
    assert not load.num_pending


def test_sequences_are_as_long_alone_as_beside_swaps() -> None:
    """The time of a step that takes as long as its sequences are: no slower in the mean."""
    lengths = itertools.count(100)
    engine: Any = SimpleNamespace(step=lambda: Step(float(next(lengths)), 1))
    load: Any = SimpleNamespace(begin=lambda: None, end=lambda: None, moved_bytes=0, host_s=0.0)
    found = take_turns(engine, load, rounds=3, steps=60)
    alone, beside = statistics.mean(found.alone_s), statistics.mean(found.beside_s + found.first_s)
    assert alone == beside
