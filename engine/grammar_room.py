"""Where requests wait for their grammars, before the scheduler hears of them.

Runs on: step thread, sole owner. Pure bookkeeping; compiling is a ``Compiler``'s. What waits here can be
aborted and paused like any request. The grammar of a request that went on is held until that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from engine.messages import AddRequest, Grammar


class Form(msgspec.Struct, frozen=True):
    """A grammar, and the salt of those who share what is compiled of it.

    Whether it is compiled already shows in the time of an answer, so others than those do not share it.
    """

    grammar: Grammar
    cache_salt: bytes = b""


@dataclass(frozen=True, slots=True)
class Compilation:
    """How compiling ended: with ``compiled``, or with an ``error``, one plain sentence."""

    form: Form
    compiled: object | None = None
    error: str | None = None


class Compiler(Protocol):
    """Compiles off the step thread. No call blocks."""

    def find(self, form: Form) -> object | None:
        """What is compiled already; it stays found while somebody keeps what is returned."""
        ...

    def submit(self, form: Form, tenant: str) -> None:
        """Compile when it is the tenant's turn, unless that is under way. The result is told by ``poll``."""
        ...

    def cancel(self, form: Form) -> None:
        """Nobody waits for it any more. If it has begun it goes on, and its result is told."""
        ...

    def poll(self) -> Sequence[Compilation]:
        """What has been compiled since the last call."""
        ...

    @property
    def has_results(self) -> bool: ...

    def close(self) -> None: ...


class NoCompiler:
    """Of an engine that follows no grammars."""

    has_results = False

    def find(self, form: Form) -> object | None:
        return None

    def submit(self, form: Form, tenant: str) -> None:
        raise AssertionError("there is no compiler")

    def cancel(self, form: Form) -> None:
        pass

    def poll(self) -> Sequence[Compilation]:
        return ()

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Waiting:
    """A request, and what was asked of it while it waited: ``unwanted`` are indices of aborted sequences."""

    message: AddRequest
    form: Form
    paused: bool = False
    unwanted: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Settled:
    """A request that waits no longer: it may go to the scheduler, or is refused with ``error``."""

    waiting: Waiting
    error: str | None


class GrammarRoom:
    """Requests whose grammars are being compiled, in the order of their arrival.

    ``forget`` is called with the id of each request that had a grammar and is over.
    """

    def __init__(self, compiler: Compiler, forget: Callable[[str], None]) -> None:
        self._compiler = compiler
        self._forget = forget
        self._waiting: dict[str, Waiting] = {}
        self._held: dict[str, object] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    @property
    def num_paused(self) -> int:
        return sum(waiting.paused for waiting in self._waiting.values())

    @property
    def has_results(self) -> bool:
        """Whether there is something to take in."""
        return self._compiler.has_results

    def admit(self, message: AddRequest) -> bool:
        """Whether a request may go on at once. If not, it waits here."""
        grammar = message.sampling.grammar
        if grammar is None:
            return True
        form = Form(grammar, message.cache_salt)
        compiled = self._compiler.find(form)
        if compiled is not None:
            self._held[message.request_id] = compiled
            return True
        self._waiting[message.request_id] = Waiting(message, form)
        self._compiler.submit(form, message.tenant)
        return False

    def take_in(self) -> Iterator[Settled]:
        """Those who need not wait any longer, first come first."""
        for result in self._compiler.poll():
            for waiting in [w for w in self._waiting.values() if w.form == result.form]:
                request_id = waiting.message.request_id
                del self._waiting[request_id]
                if result.error is None:
                    self._held[request_id] = result.compiled
                yield Settled(waiting, result.error)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Let a request go, or remember that one of its sequences is not wanted. Unknown ids are ignored."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return
        if index is not None:
            waiting.unwanted.add(index)
        if index is None or waiting.unwanted.issuperset(range(waiting.message.sampling.n)):
            del self._waiting[request_id]
            if all(other.form != waiting.form for other in self._waiting.values()):
                self._compiler.cancel(waiting.form)

    def set_paused(self, request_id: str, *, paused: bool) -> None:
        if request_id in self._waiting:
            self._waiting[request_id].paused = paused

    def release(self, request_id: str) -> None:
        """The request is over; its grammar may be forgotten."""
        if self._held.pop(request_id, None) is not None:
            self._forget(request_id)

    def problems(self, is_known: Callable[[str], bool]) -> tuple[str, ...]:
        """Grammars held for requests that the scheduler does not know (any more)."""
        lost = [request_id for request_id in self._held if not is_known(request_id)]
        return tuple(f"a grammar is held for request {request_id}, which is over" for request_id in lost)

    def close(self) -> None:
        self._waiting.clear()
        self._held.clear()
        self._compiler.close()
