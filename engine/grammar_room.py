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
        self.num_paused = 0
        self._waiting: dict[str, Waiting] = {}
        self._of_form: dict[Form, dict[str, Waiting]] = {}
        self._held: dict[str, object] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

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
        waiting = self._waiting[message.request_id] = Waiting(message, form)
        self._of_form.setdefault(form, {})[message.request_id] = waiting
        self._compiler.submit(form, message.tenant)
        return False

    def take_in(self) -> Iterator[Settled]:
        """Those who need not wait any longer, first come first."""
        for result in self._compiler.poll():
            for waiting in tuple(self._of_form.get(result.form, {}).values()):
                self._leave(waiting)
                if result.error is None:
                    self._held[waiting.message.request_id] = result.compiled
                yield Settled(waiting, result.error)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Let a request go, or remember that one of its sequences is not wanted. Unknown ids are ignored."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return
        if index is not None:
            waiting.unwanted.add(index)
        if index is None or waiting.unwanted.issuperset(range(waiting.message.sampling.n)):
            self._leave(waiting)
            if waiting.form not in self._of_form:
                self._compiler.cancel(waiting.form)

    def set_paused(self, request_id: str, *, paused: bool) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            self.num_paused += paused - waiting.paused
            waiting.paused = paused

    def release(self, request_id: str) -> None:
        """The request is over; its grammar may be forgotten."""
        if self._held.pop(request_id, None) is not None:
            self._forget(request_id)

    def problems(self, is_known: Callable[[str], bool]) -> tuple[str, ...]:
        """What does not add up here, or is held for requests that the scheduler does not know (any more)."""
        lost = [request_id for request_id in self._held if not is_known(request_id)]
        problems = [f"a grammar is held for request {request_id}, which is over" for request_id in lost]
        listed = {name for those in self._of_form.values() for name in those}
        if listed != self._waiting.keys() or not all(self._of_form.values()):
            problems.append("what waits for grammars does not add up")
        if self.num_paused != sum(waiting.paused for waiting in self._waiting.values()):
            problems.append("the count of paused requests that wait for grammars is off")
        return tuple(problems)

    def close(self) -> None:
        self.num_paused = 0
        self._waiting.clear()
        self._of_form.clear()
        self._held.clear()
        self._compiler.close()

    def _leave(self, waiting: Waiting) -> None:
        request_id = waiting.message.request_id
        del self._waiting[request_id]
        self.num_paused -= waiting.paused
        same_form = self._of_form[waiting.form]
        del same_form[request_id]
        if not same_form:
            del self._of_form[waiting.form]
