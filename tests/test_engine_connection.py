"""The step thread's one place to wait: commands and wakes, none lost, whatever the threads' timing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.connection import EngineConnection
from engine.messages import FromEngine, LoadProgress
from engine.wire import FrameDecoder


@contextmanager
def connection() -> Iterator[EngineConnection]:
    ours, theirs = socket.socketpair()
    opened = EngineConnection(ours, epoch=1)
    try:
        yield opened
    finally:
        theirs.close()
        opened.close(timeout_s=1.0)


def waits_for_ever(opened: EngineConnection) -> bool:
    waiter = threading.Thread(target=opened.wait, daemon=True)
    waiter.start()
    waiter.join(0.5)
    stuck = waiter.is_alive()
    opened.wake()
    waiter.join(5)
    return stuck


def test_a_wake_before_the_wait_counts() -> None:
    with connection() as opened:
        opened.wake()
        assert not waits_for_ever(opened)


def test_many_wakes_are_one() -> None:
    with connection() as opened:
        for _ in range(10_000):
            opened.wake()
        assert opened.wait() == []
        assert opened.wait(timeout_s=0.01) == []


def test_a_wake_that_arrives_while_the_inbox_is_emptied_is_not_the_last() -> None:
    with connection() as opened:
        take, woken = opened._inbox.get_nowait, []

        def take_after_a_wake() -> object:
            if not woken:
                woken.append(True)
                other = threading.Thread(target=opened.wake)
                other.start()
                other.join()
            return take()

        opened._inbox.get_nowait = take_after_a_wake  # type: ignore[method-assign, assignment]
        opened.poll()
        opened.wake()
        assert not waits_for_ever(opened)


def test_no_wake_is_lost_between_threads_that_race() -> None:
    with connection() as opened:
        produced = consumed = 0
        lock = threading.Lock()
        rounds = 3000

        def produce() -> None:
            nonlocal produced
            for _ in range(rounds):
                with lock:
                    produced += 1
                opened.wake()

        workers = [threading.Thread(target=produce) for _ in range(2)]
        for worker in workers:
            worker.start()
        while consumed < 2 * rounds:
            opened.poll()
            consumed = produced  # what the step thread does then: look at the copies
            if consumed == 2 * rounds:
                break
            started = time.monotonic()
            opened.wait(timeout_s=10.0)
            assert time.monotonic() - started < 10.0, "waited in vain"
            consumed = produced
        for worker in workers:
            worker.join()


def test_each_message_tells_how_many_wait_behind_it() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    opened = EngineConnection(ours, epoch=1)
    decoder, found = FrameDecoder(FromEngine), list[FromEngine]()
    with theirs:
        for number in range(200):
            opened.send(LoadProgress("weights" * 20, number, 200))
        while len(found) < 200:
            found += decoder.feed(theirs.recv(2**16))
    opened.close(timeout_s=1.0)
    told = [envelope.num_behind for envelope in found]
    assert all(num_behind <= 199 - number for number, num_behind in enumerate(told))
    assert told[100:] == [*range(99, -1, -1)], "all were there before the socket took half of them"
