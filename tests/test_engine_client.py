"""EngineClient against a real engine process (sockets, threads, step loop) with a fake model."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from engine.client import EngineBusyError, EngineClient, EngineDeadError, EngineHealth, EngineStartError
from engine.config import EngineConfig
from engine.messages import (
    AddRequest,
    Branch,
    FinishReason,
    ForkRequest,
    LoadProgress,
    SamplingParams,
    StepReport,
    TokenDelta,
)
from tests.support.fake_kv import expected_tokens

FAKE = "tests.support.fake_engine_process"
Start = Callable[..., Awaitable[EngineClient]]


def engine_processes() -> list[str]:
    """Ids of all that this process has started and that still run."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [child for child in children if FAKE.encode() in Path(f"/proc/{child}/cmdline").read_bytes()]


class Collector:
    """A sink that keeps everything and can be waited for."""

    def __init__(self) -> None:
        self.deltas: list[TokenDelta] = []
        self.error: EngineDeadError | None = None
        self.done = asyncio.Event()
        self.changed = asyncio.Event()

    def deliver(self, delta: TokenDelta) -> None:
        self.deltas.append(delta)
        self.changed.set()
        if delta.ends_request:
            self.done.set()

    def fail(self, error: EngineDeadError) -> None:
        self.error = error
        self.done.set()

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    clients: list[EngineClient] = []

    async def start_client(model: str = "fake", **kwargs: object) -> EngineClient:
        client = await EngineClient.start(EngineConfig(model=model), module=FAKE, **kwargs)  # type: ignore[arg-type]
        clients.append(client)
        return client

    yield start_client
    for client in clients:
        await client.close()


def request(name: str, prompt: list[int], max_tokens: int = 5) -> AddRequest:
    return AddRequest(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, seed=0),
    )


async def settled(client: EngineClient) -> None:
    """Wait until the engine has nothing in use."""
    async with asyncio.timeout(10):
        while (await client.check_integrity()).stats.blocks_in_use:
            await asyncio.sleep(0.01)


async def test_requests_run_side_by_side_and_each_gets_its_tokens(start: Start) -> None:
    client = await start()
    sinks = {i: Collector() for i in range(20)}
    for i, sink in sinks.items():
        client.submit(request(f"r{i}", list(range(i + 1)), max_tokens=i + 1), sink)
    for i, sink in sinks.items():
        await asyncio.wait_for(sink.done.wait(), 10)
        assert sink.tokens == expected_tokens(list(range(i + 1)), i + 1)
        assert sink.deltas[-1].finish_reason is FinishReason.LENGTH
    report = await client.check_integrity()
    assert report.problems == ()
    assert report.stats.blocks_in_use == 0


async def test_a_history_that_was_forgotten_is_computed_again(start: Start) -> None:
    client = await start()
    cached = []
    for i in range(3):
        sink = Collector()
        client.submit(request(f"r{i}", list(range(40))), sink)
        await asyncio.wait_for(sink.done.wait(), 10)
        assert sink.tokens == expected_tokens(list(range(40)), 5)
        cached.append(sink.deltas[-1].num_cached_tokens)
        if i == 1:
            client.forget_kv(range(40), 20, b"")
    assert cached == [0, 32, 16]


async def test_sessions_are_described_in_the_order_they_were_asked_for(start: Start) -> None:
    client = await start()
    found = await client.describe_sessions(["b", "a"])
    assert [entry.session for entry in found.sessions] == ["b", "a"]


async def test_progress_is_told_while_loading(start: Start) -> None:
    seen: list[LoadProgress] = []
    await start(on_progress=seen.append)
    assert [(p.phase, p.done, p.total) for p in seen] == [("weights", i, 2) for i in range(3)]


async def test_there_is_one_report_per_step_for_all_requests(start: Start) -> None:
    client = await start("fake:0.01")
    reports: list[StepReport] = []
    client.add_step_listener(reports.append)
    sinks = [Collector() for _ in range(4)]
    for i, sink in enumerate(sinks):
        client.submit(request(f"r{i}", [i], max_tokens=6), sink)
    for sink in sinks:
        await asyncio.wait_for(sink.done.wait(), 10)
    steps = [report for report in reports if report.stage_seconds]
    assert [report.step for report in steps] == list(range(1, len(steps) + 1))
    assert max(len(report.deltas) for report in steps) == 4
    assert set(steps[-1].stage_seconds) == {"schedule", "execute", "update"}


async def test_abort_frees_blocks_and_the_sink_gets_nothing_more(start: Start) -> None:
    client = await start("fake:0.005")
    sink = Collector()
    client.submit(request("a", [1, 2, 3], max_tokens=400), sink)
    await asyncio.wait_for(sink.changed.wait(), 10)
    client.abort("a")
    client.abort("a")
    count = len(sink.deltas)
    await settled(client)
    assert len(sink.deltas) == count
    assert client.stats.num_running == 0


async def test_the_figures_are_fresh_after_an_abort_with_nothing_left_to_step(start: Start) -> None:
    client = await start("fake:0.005")
    sink = Collector()
    client.submit(request("a", [1] * 40, max_tokens=400), sink)
    await asyncio.wait_for(sink.changed.wait(), 10)
    assert client.stats.blocks_in_use > 0
    client.abort("a")
    async with asyncio.timeout(10):
        while client.stats.blocks_in_use:
            await asyncio.sleep(0.01)


async def test_pause_stops_tokens_and_resume_brings_the_rest(start: Start) -> None:
    client = await start("fake:0.002")
    sink = Collector()
    client.submit(request("a", [1, 2], max_tokens=50), sink)
    await asyncio.wait_for(sink.changed.wait(), 10)
    client.pause("a")
    await client.check_integrity()
    count = len(sink.tokens)
    await asyncio.sleep(0.1)
    assert len(sink.tokens) == count < 50
    assert client.health() is EngineHealth.OK
    client.resume("a")
    await asyncio.wait_for(sink.done.wait(), 10)
    assert sink.tokens == expected_tokens([1, 2], 50)


async def test_what_the_engine_refuses_costs_only_that_request(start: Start) -> None:
    client = await start()
    bad, good = Collector(), Collector()
    client.submit(request("bad", [5000]), bad)
    client.submit(request("good", [5]), good)
    await asyncio.wait_for(bad.done.wait(), 10)
    await asyncio.wait_for(good.done.wait(), 10)
    assert bad.deltas[-1].finish_reason is FinishReason.ERROR
    assert good.tokens == expected_tokens([5], 5)


async def test_a_frozen_engine_is_stalled_and_recovers(start: Start) -> None:
    client = await start("fake:0.001", stall_timeout_s=0.3)
    sink = Collector()
    client.submit(request("a", [1, 2], max_tokens=500), sink)
    await asyncio.wait_for(sink.changed.wait(), 10)
    os.kill(client.process_id, signal.SIGSTOP)
    try:
        async with asyncio.timeout(10):
            while client.health() is not EngineHealth.STALLED:
                await asyncio.sleep(0.02)
    finally:
        os.kill(client.process_id, signal.SIGCONT)
    async with asyncio.timeout(10):
        while client.health() is not EngineHealth.OK:
            await asyncio.sleep(0.02)


async def test_an_idle_engine_is_healthy_however_long_nothing_happens(start: Start) -> None:
    client = await start(stall_timeout_s=0.1)
    await asyncio.sleep(0.3)
    assert client.health() is EngineHealth.OK


async def test_death_reaches_every_request_and_is_logged_with_their_ids(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    client = await start("fake:0.01")
    sinks = [Collector() for _ in range(3)]
    for i, sink in enumerate(sinks):
        client.submit(request(f"lost-{i}", [1], max_tokens=500), sink)
    await asyncio.wait_for(sinks[0].changed.wait(), 10)
    with caplog.at_level(logging.ERROR):
        os.kill(client.process_id, signal.SIGKILL)
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 10)
            assert isinstance(sink.error, EngineDeadError)
    assert all(f"lost-{i}" in caplog.text for i in range(3))
    assert "SIGKILL" in caplog.text
    assert client.health() is EngineHealth.DEAD
    assert await client.wait_dead()
    with pytest.raises(EngineDeadError):
        client.submit(request("late", [1]), Collector())
    with pytest.raises(EngineDeadError):
        await client.check_integrity()


async def test_leaving_while_the_engine_loads_does_not_wait_for_it(start: Start) -> None:
    loading = asyncio.ensure_future(start("slow-load"))
    await asyncio.sleep(0.3)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(loading, 5)


@pytest.mark.parametrize("num_turns", range(6))
async def test_leaving_at_any_moment_of_the_start_leaves_no_process(start: Start, num_turns: int) -> None:
    starting = asyncio.ensure_future(start("slow-load"))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, 5)
    assert engine_processes() == []


async def test_settings_that_are_not_text_are_a_user_error(start: Start) -> None:
    with pytest.raises(EngineStartError, match="UTF-8") as caught:
        await start("/tmp/\udcff")
    assert caught.value.is_user_error


async def test_an_engine_that_takes_nothing_in_is_sent_nothing_more(start: Start) -> None:
    client = await start("fake:0.001")
    os.kill(client.process_id, signal.SIGSTOP)
    try:
        sent = 0
        while not client._link.is_congested:
            client.submit(request(f"r{sent}", [1] * 50_000), Collector())
            sent += 1
            assert sent < 1000
        with pytest.raises(EngineBusyError):
            client.submit(request("one-more", [1]), Collector())
    finally:
        os.kill(client.process_id, signal.SIGCONT)
    async with asyncio.timeout(30):
        while client._link.is_congested:
            await asyncio.sleep(0.02)
    sink = Collector()
    client.submit(request("late", [1]), sink)
    await asyncio.wait_for(sink.done.wait(), 30)


async def test_a_step_that_raises_ends_the_engine_with_its_reason(start: Start) -> None:
    client = await start("fail-step")
    sink = Collector()
    client.submit(request("a", [1]), sink)
    await asyncio.wait_for(sink.done.wait(), 10)
    assert "scripted failure" in str(sink.error)


async def test_closing_with_requests_running_fails_them(start: Start) -> None:
    client = await start("fake:0.01")
    sink = Collector()
    client.submit(request("a", [1], max_tokens=500), sink)
    await asyncio.wait_for(sink.changed.wait(), 10)
    await client.close()
    assert isinstance(sink.error, EngineDeadError)


@pytest.mark.parametrize(("model", "user_error"), [("fail-load", True), ("crash-load", False)])
async def test_an_engine_that_cannot_start_says_why(start: Start, model: str, user_error: bool) -> None:
    with pytest.raises(EngineStartError) as caught:
        await start(model)
    assert caught.value.is_user_error is user_error
    assert str(caught.value)


async def test_the_engine_does_not_outlive_its_gateway(start: Start) -> None:
    client = await start("fake:0.01")
    client.submit(request("a", [1], max_tokens=500), Collector())
    client._link.close()
    assert client._process is not None
    await asyncio.wait_for(client._process.wait(), 10)


# ---- several sequences -----------------------------------------------------------------------------


async def test_a_request_of_several_sequences_ends_with_the_last_of_them(start: Start) -> None:
    client = await start()
    sink = Collector()
    message = request("group", [1, 2, 3], max_tokens=6)
    sampling = msgspec.structs.replace(message.sampling, n=3)
    client.submit(msgspec.structs.replace(message, sampling=sampling), sink)
    await asyncio.wait_for(sink.done.wait(), 10)
    for index in range(3):
        tokens = [token for delta in sink.deltas if delta.index == index for token in delta.token_ids]
        assert tokens == expected_tokens([1, 2, 3], 6, seed=index)
    assert [delta.ends_request for delta in sink.deltas].count(True) == 1
    await settled(client)


async def test_one_sequence_is_aborted_and_the_others_go_on(start: Start) -> None:
    client = await start("fake:0.005")
    sink = Collector()
    message = request("group", [1, 2, 3], max_tokens=40)
    sampling = msgspec.structs.replace(message.sampling, n=2)
    client.submit(msgspec.structs.replace(message, sampling=sampling), sink)
    await asyncio.wait_for(sink.changed.wait(), 10)
    client.abort("group", 0)
    client.abort("nobody", 0)
    await asyncio.wait_for(sink.done.wait(), 10)
    counts = [sum(len(d.token_ids) for d in sink.deltas if d.index == index) for index in (0, 1)]
    assert counts[0] < counts[1] == 40
    await settled(client)


async def test_branches_go_on_from_a_running_and_from_an_ended_sequence(start: Start) -> None:
    client = await start("fake:0.002")
    root = Collector()
    client.submit(request("root", list(range(20)), max_tokens=60), root)
    await asyncio.wait_for(root.changed.wait(), 10)
    sinks = {name: Collector() for name in ("a", "b", "late", "lost")}
    branch = {name: Branch(request_id=name, sampling=request(name, [1]).sampling) for name in sinks}
    client.fork(
        ForkRequest(request_id="root", branches=(branch["a"], branch["b"])),
        {name: sinks[name] for name in ("a", "b")},
    )
    await asyncio.wait_for(root.done.wait(), 10)
    client.fork(ForkRequest(request_id="root", branches=(branch["late"],)), {"late": sinks["late"]})
    client.fork(ForkRequest(request_id="nobody", branches=(branch["lost"],)), {"lost": sinks["lost"]})
    for sink in sinks.values():
        await asyncio.wait_for(sink.done.wait(), 10)
    whole = expected_tokens(list(range(20)), 65)
    assert root.tokens == whole[:60]
    assert sinks["late"].tokens == whole[60:]
    for name in ("a", "b"):  # what a fake model says next is what it says to the root
        assert "".join(map(chr, sinks[name].tokens)) in "".join(map(chr, whole))
        assert sinks[name].deltas[-1].num_cached_tokens >= 16
    assert sinks["lost"].deltas[-1].finish_reason is FinishReason.ERROR
    await settled(client)
