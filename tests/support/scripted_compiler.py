"""A compiler of grammars that is done when it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from engine.grammar_room import Compilation
from engine.messages import Grammar


class ScriptedCompiler:
    """Implements ``engine.grammar_room.Compiler``; what is compiled is the grammar's text."""

    def __init__(self) -> None:
        self.submitted: list[Grammar] = []
        self.cancelled: list[Grammar] = []
        self.known: dict[Grammar, object] = {}
        self.closed = False
        self._results: list[Compilation] = []

    def finish(self, grammar: Grammar, error: str | None = None) -> None:
        """Compiling ends."""
        self.submitted.remove(grammar)
        if error is None:
            self.known[grammar] = grammar.text
        self._results.append(Compilation(grammar, None if error else grammar.text, error))

    def find(self, grammar: Grammar) -> object | None:
        return self.known.get(grammar)

    def submit(self, grammar: Grammar) -> None:
        if grammar not in self.submitted:
            self.submitted.append(grammar)

    def cancel(self, grammar: Grammar) -> None:
        self.submitted.remove(grammar)
        self.cancelled.append(grammar)

    def poll(self) -> Sequence[Compilation]:
        results, self._results = self._results, []
        return results

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def close(self) -> None:
        self.closed = True
