"""Measures all servers in turn: rounds of every load, each between two probes of the machine.

In a round the servers are asked one after another, in the next one in the other order (A B, B A, ...), so
that what changes slowly meets all alike. The floor's constants are measured in every round too: its ratio is
then of one moment like the others. A round in which the probes tell that the machine changed is made again,
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from benchmarks.cpu_engine.asked import MOST_DRIFT, OURS, Asked, Load
from benchmarks.cpu_engine.client import Client, ClientError, Question
from benchmarks.cpu_engine.floor import Constants, Probe
from benchmarks.cpu_engine.results import Round, Seen
from benchmarks.cpu_engine.servers import Running

Say = Callable[[str], None]


class Machine(Protocol):
    """Measures what the machine can do; ``rates.Rates`` is the real one."""

    def probe(self) -> Probe: ...

    def constants(self, load: Load) -> Constants: ...


@dataclass(frozen=True, slots=True)
class Bench:
    """Servers by name, the client that asks them, and the machine that they share.

    A peer that cannot be asked any more is ``lost``, with the reason, and left out from then on.
    """

    servers: Mapping[str, Running]
    client: Client
    machine: Machine
    say: Say
    lost: dict[str, str] = field(default_factory=dict)

    def measure(self, asked: Asked) -> list[Round]:
        """Every load in every round; if it is interrupted after the first, all rounds before.

        Raises ClientError if it is tidegate that cannot be asked.
        """
        rounds: list[Round] = []
        for number in range(asked.num_rounds):
            try:
                rounds += [self._round(load, number) for load in asked.all_loads]
            except KeyboardInterrupt:
                if not rounds:
                    raise
                self.say(f"interrupted: the figures are of {number} whole rounds")
                break
        return rounds

    def _round(self, load: Load, number: int) -> Round:
        found = self._once(load, number)
        if found.drift <= MOST_DRIFT:
            return found
        self.say(f"the machine changed by {found.drift:.2f} times: once more")
        return less_drift(found, self._once(load, number))

    def _once(self, load: Load, number: int) -> Round:
        names = order([name for name in self.servers if name not in self.lost], number)
        before = self.machine.probe()
        constants = self.machine.constants(load)
        seen = {}
        for name in names:
            if (had := self._ask(name, load, number)) is not None:
                seen[name] = had
        return Round(
            load=load.name,
            number=number,
            order=list(seen),
            seen=seen,
            constants=constants,
            before=before,
            after=self.machine.probe(),
        )

    def _ask(self, name: str, load: Load, number: int) -> Seen | None:
        """None if it is lost over it."""
        server = self.servers[name]
        try:
            with server.going():
                seen = self.client.ask(Question(server.url, load, number))
        except ClientError as error:
            if name == OURS:
                raise
            self.lost[name] = str(error)
            self.say(f"{name} is lost: {error}")
            return None
        self.say(f"round {number + 1}: {load.name}: {name} {seen.output_tok_s:,.0f} tokens/s")
        return seen


def less_drift(first: Round, again: Round) -> Round:
    """The one that is kept."""
    return msgspec.structs.replace(min(first, again, key=lambda found: found.drift), was_repeated=True)


def order(names: Sequence[str], number: int) -> list[str]:
    """Forwards and backwards by turns."""
    return list(reversed(names)) if number % 2 else list(names)
