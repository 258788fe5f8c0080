"""A compiler of grammars that is done when it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from engine.grammar_room import Compilation, Form
from engine.messages import Grammar


class ScriptedCompiler:
    """Implements ``engine.grammar_room.Compiler``; what is compiled is the grammar's text."""

    def __init__(self) -> None:
        self.submitted: list[Form] = []
        self.tenants: list[str] = []
        self.cancelled: list[Form] = []
        self.known: dict[Form, object] = {}
        self.closed = False
        self._results: list[Compilation] = []

    def finish(self, grammar: Grammar, error: str | None = None, salt: bytes = b"") -> None:
        """Compiling ends."""
        form = Form(grammar, salt)
        self.submitted.remove(form)
        if error is None:
            self.known[form] = grammar.text
        self._results.append(Compilation(form, None if error else grammar.text, error))

    def find(self, form: Form) -> object | None:
        return self.known.get(form)

    def submit(self, form: Form, tenant: str) -> None:
        self.tenants.append(tenant)
        if form not in self.submitted:
            self.submitted.append(form)

    def cancel(self, form: Form) -> None:
        self.submitted.remove(form)
        self.cancelled.append(form)

    def poll(self) -> Sequence[Compilation]:
        results, self._results = self._results, []
        return results

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def close(self) -> None:
        self.closed = True
