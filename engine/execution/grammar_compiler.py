"""Compiles grammars beside the step loop, each once for those who share a salt, and keeps those used last.

Runs on: threads ``engine-grammar-N``, which start with the first grammar; everything but ``_work`` is called
by the step thread and never blocks. What waits to be compiled is bounded by the requests in flight: a grammar
that nobody waits for any more is cancelled. One that failed is remembered too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from engine.execution.grammars import STACK_BYTES, CompiledGrammar, GrammarError
from engine.grammar_errors import TOO_LARGE
from engine.grammar_line import GrammarLine
from engine.grammar_room import Compilation, Form
from engine.messages import Grammar

logger = logging.getLogger(__name__)

NUM_THREADS = 2  # one slow grammar holds up nobody; several hold up other grammars only, in turns
MAX_BYTES = 256 * 2**20
_MAX_RECENT = 128
_MAX_REFUSED = 64
_NICENESS = 10


class Workshop(Protocol):
    """What one thread compiles with."""

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Blocks for as long as the time limit. Raises GrammarError."""
        ...

    def interrupt(self) -> None:
        """From any thread: let ``compile`` return soon."""
        ...

    def close(self) -> None: ...


class GrammarCompiler:
    """``wake`` is called whenever ``poll`` has something new. Implements ``engine.grammar_room.Compiler``."""

    def __init__(
        self,
        open_workshop: Callable[[], Workshop],
        wake: Callable[[], None],
        num_threads: int = NUM_THREADS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._open_workshop = open_workshop
        self._wake = wake
        self._num_threads = num_threads
        self._max_bytes = max_bytes
        self._known: WeakValueDictionary[Form, CompiledGrammar] = WeakValueDictionary()
        self._recent: OrderedDict[Form, CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()  # by digests, for texts may be large
        self._pending: set[Form] = set()
        self._workshops: list[Workshop] = []
        self._results: deque[Compilation] = deque()  # appended to by the threads
        self._line = GrammarLine()  # guarded, with _closing, by _has_work
        self._has_work = threading.Condition()
        self._closing = False

    def find(self, form: Form) -> CompiledGrammar | None:
        compiled = self._known.get(form)
        if compiled is not None:
            self._remember(form, compiled)
        return compiled

    def submit(self, form: Form, tenant: str) -> None:
        if form in self._pending:
            with self._has_work:
                if form in self._line:
                    self._line.add(form, tenant)  # whose turn may come sooner
            return
        self._pending.add(form)
        error = self._refused.get(_digest(form))
        if error is not None:
            self._results.append(Compilation(form, error=error))
            return
        if not self._workshops:
            self._start()
        with self._has_work:
            self._line.add(form, tenant)
            self._has_work.notify()

    def cancel(self, form: Form) -> None:
        with self._has_work:
            if form in self._line:
                self._line.remove(form)
                self._pending.discard(form)

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def poll(self) -> Sequence[Compilation]:
        results: list[Compilation] = []
        while self._results:
            result = self._results.popleft()
            self._pending.discard(result.form)
            if isinstance(result.compiled, CompiledGrammar):
                self._remember(result.form, result.compiled)
            elif result.error is not None:
                self._refused[_digest(result.form)] = result.error
                if len(self._refused) > _MAX_REFUSED:
                    self._refused.popitem(last=False)
            results.append(result)
        return results

    def close(self) -> None:
        """End the threads; one that compiles ends as soon as it can."""
        with self._has_work:
            self._closing = True
            self._has_work.notify_all()
        for workshop in self._workshops:
            workshop.interrupt()

    def _remember(self, form: Form, compiled: CompiledGrammar) -> None:
        self._known[form] = compiled
        self._recent[form] = compiled
        self._recent.move_to_end(form)
        num_bytes = sum(other.num_bytes for other in self._recent.values())
        while len(self._recent) > 1 and (num_bytes > self._max_bytes or len(self._recent) > _MAX_RECENT):
            num_bytes -= self._recent.popitem(last=False)[1].num_bytes

    def _start(self) -> None:
        self._workshops = [self._open_workshop() for _ in range(self._num_threads)]
        before = threading.stack_size(STACK_BYTES)
        try:
            for number, workshop in enumerate(self._workshops):
                name = f"engine-grammar-{number}"
                threading.Thread(target=self._work, args=(workshop,), name=name, daemon=True).start()
        finally:
            threading.stack_size(before)

    def _work(self, workshop: Workshop) -> None:
        with contextlib.suppress(OSError):  # on Linux a thread has a niceness of its own: steps come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._has_work:
                self._has_work.wait_for(lambda: self._line or self._closing)
                if self._closing:
                    break
                form = self._line.take()
            self._results.append(_compile(workshop, form))
            self._wake()
        workshop.close()


def _compile(workshop: Workshop, form: Form) -> Compilation:
    try:
        return Compilation(form, workshop.compile(form.grammar))
    except GrammarError as error:
        return Compilation(form, error=str(error))
    except BaseException:  # a panic of the library is none of Exception's
        logger.exception("a grammar of %d characters could not be compiled", len(form.grammar.text))
        return Compilation(form, error=TOO_LARGE)


def _digest(form: Form) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(form), digest_size=16).digest()
