"""The state store against a simple model of it, driven by hypothesis through random lives of two tenants.

Every call must give what the model gives, be it an error; after every step all that is known, and its bytes,
are the model's, and a recount finds nothing wrong.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.responses.ledger import Ledger
from gateway.responses.records import (
    ConversationRecord,
    ItemRecord,
    ResponseRecord,
    StateError,
    StateSettings,
)
from tests.support.state_model import StateModel

SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
TTL_S = 300.0
TENANTS = "ab"
STATUSES = ("completed", "completed", "completed", "in_progress", "queued")
SIZES = (0, 40, 400)
WAITS_S = (5.0, TTL_S / 4, TTL_S / 2)
# What happens next, as often as it stands here.
ACTIONS = (
    *["go_on"] * 10, *["begin"] * 3, *["become"] * 3, *["use_response"] * 4, "delete_response",
    *["create"] * 2, *["turn"] * 5, *["add"] * 3, *["list_items"] * 3, *["use_item"] * 2, "update",
    *["use_conversation"] * 2, "delete_conversation", "wait", "reopen",
)  # fmt: skip


class Step(NamedTuple):
    """An action and what it may want to know. ``place``: which one, of the newest first."""

    action: str
    tenant: str
    place: int
    status: str
    size: int
    number: int


STEPS = st.builds(
    Step,
    st.sampled_from(ACTIONS),
    st.sampled_from(TENANTS),
    st.integers(0, 2) | st.integers(0, 12),
    st.sampled_from(STATUSES),
    st.sampled_from(SIZES),
    st.integers(0, 5),
)


def item(name: str, size: int) -> ItemRecord:
    return ItemRecord(name, b'{"text":"%s"}' % (b"x" * size))


class Life:
    """A store and its model, which do the same."""

    def __init__(self, folder: Path) -> None:
        self.settings = StateSettings(folder / "state", 16_000, TTL_S, max_conversations=2, max_items=6)
        self.now = 1000.0
        self.made = 0
        self.ledger = Ledger(self.settings, lambda: self.now)
        self.model = StateModel(self.settings)

    def take(self, step: Step) -> None:
        getattr(self, step.action)(step)
        assert self.ledger.check() == []
        assert self.ledger.num_bytes() == self.model.num_bytes
        known = self.ledger._database.execute(
            "SELECT tenant, id FROM responses WHERE NOT is_deleted UNION SELECT tenant, id FROM conversations"
        )
        assert set(known) == self.model.known

    def both(self, name: str, *arguments: Any) -> None:
        self.now += 1
        expected = self.model.call(self.now, name, *arguments)
        try:
            found = getattr(self.ledger, name)(*arguments)
        except StateError as error:
            found = type(error)
        assert found == expected

    # ---- responses -----------------------------------------------------------------------------

    def record(self, step: Step, known: ResponseRecord | None = None, **fields: Any) -> ResponseRecord:
        """Of a new response, or of one that is there already."""
        self.made += 1
        asked, said = (item(f"{kind}{self.made}", step.size) for kind in "io")
        made: dict[str, Any] = {
            "id": f"r{self.made}",
            "tenant": step.tenant,
            "session": "s",
            "previous_id": None,
            "conversation_id": None,
            "status": step.status,
            "created_at": self.now,
            "body": b'{"status":"%s"}' % step.status.encode(),
            "inputs": (asked,),
            "outputs": () if step.status == "queued" else (said,),
            "making": b"m" * step.size,
        }
        names = ("id", "tenant", "previous_id", "conversation_id", "created_at")
        kept = {} if known is None else {name: getattr(known, name) for name in names}
        return ResponseRecord(**{**made, **kept, **fields})

    def response_of(self, step: Step) -> ResponseRecord | None:
        """One of those there are, of either tenant, deleted ones too."""
        records = [turn.record for turn in self.model.turns[::-1]]
        return records[step.place] if step.place < len(records) else None

    def begin(self, step: Step) -> None:
        self.both("put_response", self.record(step))

    def go_on(self, step: Step) -> None:
        previous = self.response_of(step)
        if previous is not None:
            tenant = step.tenant if step.number == 0 else previous.tenant
            self.both("put_response", self.record(step, previous_id=previous.id, tenant=tenant))

    def turn(self, step: Step) -> None:
        tenant, name = self.conversation_of(step)
        record = self.record(step, tenant=tenant, conversation_id=name)
        self.both("put_turn" if step.status == "completed" else "put_response", record)

    def become(self, step: Step) -> None:
        running = [turn.record for turn in self.model.turns[::-1] if turn.record.status != "completed"]
        known = running[step.place] if step.place < len(running) else self.response_of(step)
        if known is not None:
            record = self.record(step, known)
            ends_turn = known.conversation_id is not None and step.status == "completed"
            self.both("put_turn" if ends_turn else "put_response", record)

    def use_response(self, step: Step) -> None:
        known = self.response_of(step)
        owner = step.tenant if known is None or step.number == 0 else known.tenant
        name = "response" if step.number == 1 else "history"
        self.both(name, owner, "r0" if known is None else known.id)

    def delete_response(self, step: Step) -> None:
        known = self.response_of(step)
        owner = step.tenant if known is None or step.number == 0 else known.tenant
        self.both("delete_response", owner, "r0" if known is None else known.id)

    # ---- conversations -------------------------------------------------------------------------

    def conversation_of(self, step: Step) -> tuple[str, str]:
        """One of those there are, and whose; at times another tenant's."""
        entries = [entry.record for entry in self.model.conversations]
        if step.number == 5 or not entries:
            return step.tenant, f"c{step.number % 3}"
        chosen = entries[step.number % len(entries)]
        return chosen.tenant, chosen.id

    def some_items(self, step: Step) -> tuple[ItemRecord, ...]:
        """The second of two may be there already."""
        self.made += 1
        return (item(f"m{self.made}", step.size), item(f"m{step.place}", step.size))[: step.number % 3]

    def create(self, step: Step) -> None:
        name = f"c{step.number % 3}"
        if self.model._conversation(step.tenant, name) is None:
            record = ConversationRecord(name, step.tenant, self.now, b"{}")
            self.both("create_conversation", record, self.some_items(step))

    def add(self, step: Step) -> None:
        self.both("add_items", *self.conversation_of(step), self.some_items(step))

    def an_item(self, step: Step) -> str:
        found = self.model._conversation(*self.conversation_of(step))
        names = list(found.items) if found is not None else []
        return names[step.place] if step.place < len(names) else "nobody"

    def list_items(self, step: Step) -> None:
        after = None if step.size == 0 else self.an_item(step)
        order = "asc" if step.status == "completed" else "desc"
        self.both("conversation_items", *self.conversation_of(step), after, 1 + step.number % 4, order)

    def use_item(self, step: Step) -> None:
        name = "item" if step.size == 0 else "delete_item"
        self.both(name, *self.conversation_of(step), self.an_item(step))

    def update(self, step: Step) -> None:
        metadata = b'{"k":"%s"}' % (b"v" * step.size)
        self.both("update_conversation", *self.conversation_of(step), metadata)

    def use_conversation(self, step: Step) -> None:
        name = ("conversation", "conversation_history", "last_turn")[step.place % 3]
        self.both(name, *self.conversation_of(step))

    def delete_conversation(self, step: Step) -> None:
        if step.place < 3:
            self.both("delete_conversation", *self.conversation_of(step))

    # ---- time and restarts ---------------------------------------------------------------------

    def wait(self, step: Step) -> None:
        self.now += WAITS_S[step.number % 3]

    def reopen(self, step: Step) -> None:
        self.ledger.close()
        self.now += 1
        self.ledger = Ledger(self.settings, lambda: self.now)
        self.model.restart(self.now)


@settings(
    max_examples=1000 if SLOW else 15,
    deadline=None,
    derandomize=not SLOW,
    database=None,
    phases=[Phase.generate, Phase.shrink] if SLOW else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(STEPS, min_size=120, max_size=160))
def test_the_store_does_what_the_model_does(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder))
        try:
            for step in steps:
                life.take(step)
        finally:
            life.ledger.close()
