"""Threads that compile: each grammar once, beside everything else; what is kept, for how long."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from engine.execution.grammar_compiler import GrammarCompiler
from engine.execution.grammars import CompiledGrammar, GrammarError
from engine.grammar_room import Compilation, Form
from engine.messages import Grammar

TIMEOUT_S = 20


def form(name: str, salt: bytes = b"") -> Form:
    return Form(Grammar("regex", name), salt)


class Bench:
    """Workshops that compile when they are told to, and what came of it."""

    def __init__(self, num_threads: int = 1, max_bytes: int = 100) -> None:
        self.begun: list[Grammar] = []
        self.gates: dict[Grammar, threading.Event] = {}
        self.woken = threading.Semaphore(0)
        self.num_closed = 0
        self.compiler = GrammarCompiler(lambda: self, self.woken.release, num_threads, max_bytes)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        self.begun.append(grammar)
        if grammar in self.gates:
            assert self.gates[grammar].wait(TIMEOUT_S)
        if grammar.text.startswith("bad"):
            raise GrammarError("It is bad.")
        if grammar.text == "crash":
            raise KeyboardInterrupt  # stands for a panic, which is no Exception either
        return CompiledGrammar(None, 40)  # type: ignore[arg-type]

    def close(self) -> None:
        self.num_closed += 1

    def interrupt(self) -> None:
        for gate in self.gates.values():
            gate.set()

    def hold(self, name: str) -> Form:
        held = form(name)
        self.gates[held.grammar] = threading.Event()
        return held

    def results(self, count: int) -> list[Compilation]:
        found: list[Compilation] = []
        while len(found) < count:
            assert self.woken.acquire(timeout=TIMEOUT_S)
            found += self.compiler.poll()
        return found

    def until_begun(self, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.begun) < count:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.compiler.close()


def test_a_result_is_told_once_and_found_from_then_on(bench: Bench) -> None:
    bench.compiler.submit(form("a"), "")
    (result,) = bench.results(1)
    assert result.error is None and result.compiled is not None
    assert bench.compiler.find(form("a")) is result.compiled
    assert not bench.compiler.has_results
    assert bench.compiler.poll() == []


def test_the_same_grammar_is_compiled_once(bench: Bench) -> None:
    slow = bench.hold("slow")
    for _ in range(3):
        bench.compiler.submit(Form(Grammar("regex", "slow")), "")
    bench.gates[slow.grammar].set()
    bench.results(1)
    assert bench.begun == [slow.grammar]


def test_submitting_does_not_wait_for_a_slow_one() -> None:
    bench = Bench(num_threads=2)
    slow = bench.hold("slow")
    bench.compiler.submit(slow, "")
    bench.compiler.submit(form("quick"), "")
    (first,) = bench.results(1)
    assert first.form == form("quick")
    bench.gates[slow.grammar].set()
    (second,) = bench.results(1)
    assert second.form == slow
    bench.compiler.close()


def test_one_that_failed_is_not_tried_again(bench: Bench) -> None:
    for _ in range(2):
        bench.compiler.submit(form("bad"), "")
        while not bench.compiler.has_results:
            assert bench.woken.acquire(timeout=TIMEOUT_S)
        (result,) = bench.compiler.poll()
        assert (result.compiled, result.error) == (None, "It is bad.")
    assert bench.begun == [form("bad").grammar]
    assert bench.compiler.find(form("bad")) is None


def test_whatever_the_library_raises_costs_its_own_grammar(bench: Bench) -> None:
    bench.compiler.submit(form("crash"), "")
    bench.compiler.submit(form("a"), "")
    assert [result.error is None for result in bench.results(2)] == [False, True]


def test_what_nobody_waits_for_is_not_begun(bench: Bench) -> None:
    slow = bench.hold("slow")
    bench.compiler.submit(slow, "")
    bench.until_begun(1)
    bench.compiler.submit(form("unwanted"), "")
    bench.compiler.cancel(form("unwanted"))
    bench.compiler.cancel(slow)  # too late: it goes on
    bench.compiler.cancel(form("never heard of"))
    bench.compiler.submit(form("a"), "")
    bench.gates[slow.grammar].set()
    assert [result.form for result in bench.results(2)] == [slow, form("a")]
    assert form("unwanted").grammar not in bench.begun


def test_one_tenants_slow_grammars_hold_up_anothers_by_one(bench: Bench) -> None:
    slow = bench.hold("slow")
    bench.compiler.submit(slow, "a")
    bench.until_begun(1)
    for name in ("a1", "a2", "a3", "shared"):
        bench.compiler.submit(form(name), "a")
    bench.compiler.submit(form("shared"), "b")
    bench.compiler.submit(form("b1"), "b")
    bench.gates[slow.grammar].set()
    names = [result.form.grammar.text for result in bench.results(6)]
    assert names == ["slow", "a1", "shared", "a2", "b1", "a3"]


def test_what_is_compiled_or_refused_for_one_salt_is_not_known_to_another(bench: Bench) -> None:
    for name in ("a", "bad"):
        for salt in (b"ours", b"theirs", b"ours"):
            if bench.compiler.find(form(name, salt)) is None:
                bench.compiler.submit(form(name, salt), "")
                while not bench.compiler.has_results:
                    assert bench.woken.acquire(timeout=TIMEOUT_S)
                (result,) = bench.compiler.poll()
                assert result.form == form(name, salt)
    assert [grammar.text for grammar in bench.begun] == ["a", "a", "bad", "bad"]
    ours, theirs = bench.compiler.find(form("a", b"ours")), bench.compiler.find(form("a", b"theirs"))
    assert ours is not None and theirs is not None and ours is not theirs


def test_a_refusal_is_remembered_without_its_text(bench: Bench) -> None:
    tracemalloc.start()
    try:
        for i in range(20):
            bench.compiler.submit(form(f"bad{i}" + "x" * 1_000_000), "")
            bench.results(1)
            bench.begun.clear()
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()


def test_those_used_last_are_kept_and_those_in_use_are_found() -> None:
    bench = Bench(max_bytes=100)  # two of them
    for name in "ab":
        bench.compiler.submit(form(name), "")
        bench.results(1)
    assert bench.compiler.find(form("a")) is not None
    held = bench.compiler.find(form("b"))
    assert bench.compiler.find(form("a")) is not None
    for name in "cd":
        bench.compiler.submit(form(name), "")
        bench.results(1)
    gc.collect()
    assert bench.compiler.find(form("a")) is None
    assert bench.compiler.find(form("b")) is held
    bench.compiler.close()


def test_threads_start_with_the_first_grammar_and_end_at_close() -> None:
    earlier = set(threading.enumerate())  # of other tests, on their way out

    def names() -> list[str]:
        started = set(threading.enumerate()) - earlier
        return [thread.name for thread in started if thread.name.startswith("engine-grammar")]

    bench = Bench(num_threads=2)
    assert names() == []
    slow = bench.hold("slow")
    bench.compiler.submit(slow, "")
    bench.until_begun(1)
    assert sorted(names()) == ["engine-grammar-0", "engine-grammar-1"]
    bench.compiler.close()
    deadline = time.monotonic() + TIMEOUT_S
    while names():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert bench.num_closed == 2
