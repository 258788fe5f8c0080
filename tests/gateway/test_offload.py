"""The door to the threads: bounded, cancellable, closed in order."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.offload import Offload, OffloadFullError


class Body:
    """Something to hold on to."""


@pytest.fixture
async def offload() -> AsyncIterator[Offload]:
    offload = Offload(num_threads=1, max_pending=2)
    yield offload
    await offload.close()


async def test_work_runs_on_a_named_thread(offload: Offload) -> None:
    name = await offload.try_run(lambda: threading.current_thread().name)
    assert name.startswith("tidegate-offload")
    assert offload.pending == 0


async def test_errors_come_back(offload: Offload) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await offload.try_run(fail)
    assert offload.pending == 0


async def test_one_call_too_many_is_refused(offload: Offload) -> None:
    go = threading.Event()
    calls = [asyncio.create_task(offload.try_run(go.wait, 10)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OffloadFullError):
        await offload.try_run(int)
    unbounded = asyncio.create_task(offload.run(int))
    go.set()
    assert await asyncio.gather(*calls, unbounded) == [True, True, 0]


async def test_a_cancelled_call_that_waits_never_starts(offload: Offload) -> None:
    go, started = threading.Event(), threading.Event()
    first = asyncio.create_task(offload.try_run(go.wait, 10))
    second = asyncio.create_task(offload.try_run(started.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    assert not started.is_set()
    assert offload.pending == 0


async def test_nothing_is_kept_of_those_who_went(offload: Offload) -> None:
    """What they sent may be large, and who goes may come again at once."""
    go = threading.Event()
    first = asyncio.create_task(offload.try_run(go.wait, 10))
    await asyncio.sleep(0.01)
    for _ in range(50):
        body = Body()
        kept = weakref.ref(body)
        call = asyncio.create_task(offload.try_run(id, body))
        del body
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        del call
        await asyncio.sleep(0)
        gc.collect()
        assert kept() is None
    go.set()
    await first


async def test_nothing_is_kept_of_a_call_that_failed(offload: Offload) -> None:
    def fail(body: Body) -> None:
        raise ValueError("no")

    gc.disable()
    try:
        body = Body()
        kept = weakref.ref(body)
        with pytest.raises(ValueError, match="no"):
            await offload.try_run(fail, body)
        del body
        await offload.try_run(int)  # the thread has let go of it
        assert kept() is None
    finally:
        gc.enable()


async def test_owners_go_in_turns(offload: Offload) -> None:
    """However much one of them sent before."""
    offload = Offload(num_threads=1)
    go, order = threading.Event(), list[str]()
    first = asyncio.create_task(offload.try_run(go.wait, 10))
    await asyncio.sleep(0)
    names = ["a1", "a2", "a3", "b1", "b2", "c1"]
    calls = [asyncio.create_task(offload.try_run(order.append, name, owner=name[0])) for name in names]
    await asyncio.sleep(0)
    calls[1].cancel()
    go.set()
    await asyncio.gather(first, *calls, return_exceptions=True)
    assert order == ["a1", "b1", "c1", "a3", "b2"]
    await offload.close()


async def test_a_turn_that_came_as_its_caller_went_is_passed_on(offload: Offload) -> None:
    go = threading.Event()
    first = asyncio.create_task(offload.try_run(go.wait, 10))
    second = asyncio.create_task(offload.try_run(int))
    await asyncio.sleep(0)
    go.set()
    while not second.done():  # cancel it in whatever state it is
        await asyncio.sleep(0)
        second.cancel()
    assert await first
    assert await asyncio.wait_for(offload.try_run(lambda: 1), 5) == 1


async def test_a_loop_that_is_at_something_else_holds_up_no_work(offload: Offload) -> None:
    third = threading.Event()
    works: list[Callable[[], None]] = [lambda: None, lambda: None, third.set]
    calls = [asyncio.create_task(offload.run(work)) for work in works]
    await asyncio.sleep(0)
    assert third.wait(10)
    await asyncio.gather(*calls)
