"""Whose grammar is compiled next: tenants take turns, and each one's grammars go first come first. Pure.

So a tenant whose grammars are slow to compile holds up another's by one at a time, however many it sends.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.grammar_room import Form


class GrammarLine:
    """Forms that wait to be compiled. One that several tenants wait for is taken at the first one's turn."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, dict[Form, None]] = OrderedDict()  # none is empty

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, form: Form) -> bool:
        return any(form in line for line in self._lines.values())

    def add(self, form: Form, tenant: str) -> None:
        self._lines.setdefault(tenant, {})[form] = None

    def take(self) -> Form:
        """The next one; there must be one."""
        tenant, line = next(iter(self._lines.items()))
        form = next(iter(line))
        self._lines.move_to_end(tenant)
        self.remove(form)
        return form

    def remove(self, form: Form) -> None:
        """What is not in line is ignored."""
        for tenant, line in list(self._lines.items()):
            line.pop(form, None)
            if not line:
                del self._lines[tenant]
