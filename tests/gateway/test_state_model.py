"""The state store against a simple model of it, driven by hypothesis through random lives of two tenants.

Every call must give what the model gives, be it an error; after every step all that is known, and its bytes,
are the model's, and a recount finds nothing wrong.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
TTL_S = 60.0
TENANTS = st.sampled_from(["a", "b"])
SIZES = st.sampled_from([0, 40, 400])
NUMBERS = st.integers(0, 9)
CONVERSATIONS = st.sampled_from(["c0", "c1", "c2"])
ITEMS = st.sampled_from([f"m{number}" for number in range(6)])
STATUSES = st.sampled_from(["completed", "completed", "in_progress", "queued"])


def item(name: str, size: int) -> ItemRecord:
    return ItemRecord(name, b'{"text":"%s"}' % (b"x" * size))


class Lives(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.settings = StateSettings(
            Path(self.folder.name) / "state", 10_000, TTL_S, max_conversations=2, max_items=4
        )
        self.now = 1000.0
        self.made = 0
        self.ledger = Ledger(self.settings, lambda: self.now)
        self.model = StateModel(self.settings)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    def both(self, name: str, *arguments: Any) -> None:
        self.now += 1
        expected = self.model.call(self.now, name, *arguments)
        try:
            found = getattr(self.ledger, name)(*arguments)
        except StateError as error:
            found = type(error)
        assert found == expected

    def record(self, tenant: str, number: int, status: str, size: int, **fields: Any) -> ResponseRecord:
        self.made += 1
        said = [item(f"{kind}{self.made}", size) for kind in "io"]
        return ResponseRecord(
            id=f"r{number}",
            tenant=tenant,
            session="s",
            previous_id=fields.get("previous_id"),
            conversation_id=fields.get("conversation_id"),
            status=status,
            created_at=self.now,
            body=b'{"status":"%s"}' % status.encode(),
            inputs=(said[0],),
            outputs=() if status == "queued" else (said[1],),
            making=b"m" * size,
        )

    # ---- responses -----------------------------------------------------------------------------

    def is_new(self, tenant: str, number: int) -> bool:
        return self.model._turn(tenant, f"r{number}", even_deleted=True) is None

    @rule(tenant=TENANTS, number=NUMBERS, previous=NUMBERS, status=STATUSES, size=SIZES)
    def go_on(self, tenant: str, number: int, previous: int, status: str, size: int) -> None:
        if self.is_new(tenant, number):
            previous_id = f"r{previous}" if previous != number else None
            self.both("put_response", self.record(tenant, number, status, size, previous_id=previous_id))

    @rule(tenant=TENANTS, number=NUMBERS, status=STATUSES, size=SIZES)
    def begin(self, tenant: str, number: int, status: str, size: int) -> None:
        if self.is_new(tenant, number):
            self.both("put_response", self.record(tenant, number, status, size))

    @rule(tenant=TENANTS, number=NUMBERS, conversation_id=CONVERSATIONS, status=STATUSES, size=SIZES)
    def begin_in_conversation(
        self, tenant: str, number: int, conversation_id: str, status: str, size: int
    ) -> None:
        if self.is_new(tenant, number):
            record = self.record(tenant, number, status, size, conversation_id=conversation_id)
            self.both("put_response" if status != "completed" else "put_turn", record)

    @rule(tenant=TENANTS, number=NUMBERS, status=STATUSES, size=SIZES)
    def become(self, tenant: str, number: int, status: str, size: int) -> None:
        turn = self.model._turn(tenant, f"r{number}", even_deleted=True)
        if turn is not None:
            known = turn.record
            record = self.record(
                tenant, number, status, size,
                previous_id=known.previous_id, conversation_id=known.conversation_id,
            )  # fmt: skip
            ends_turn = known.conversation_id is not None and status == "completed"
            self.both("put_turn" if ends_turn else "put_response", record)

    @rule(tenant=TENANTS, number=NUMBERS, name=st.sampled_from(["response", "history", "delete_response"]))
    def use_response(self, tenant: str, number: int, name: str) -> None:
        self.both(name, tenant, f"r{number}")

    # ---- conversations -------------------------------------------------------------------------

    @rule(tenant=TENANTS, name=CONVERSATIONS, items=st.lists(ITEMS, max_size=3), size=SIZES)
    def create(self, tenant: str, name: str, items: list[str], size: int) -> None:
        if self.model._conversation(tenant, name) is None:
            record = ConversationRecord(name, tenant, self.now, b"{}")
            self.both("create_conversation", record, tuple(item(one, size) for one in items))

    @rule(tenant=TENANTS, name=CONVERSATIONS, items=st.lists(ITEMS, max_size=3), size=SIZES)
    def add(self, tenant: str, name: str, items: list[str], size: int) -> None:
        self.both("add_items", tenant, name, tuple(item(one, size) for one in items))

    @rule(
        tenant=TENANTS, name=CONVERSATIONS, after=st.none() | ITEMS, limit=st.integers(1, 4),
        order=st.sampled_from(["asc", "desc"]),
    )  # fmt: skip
    def list_items(self, tenant: str, name: str, after: str | None, limit: int, order: str) -> None:
        self.both("conversation_items", tenant, name, after, limit, order)

    @rule(tenant=TENANTS, name=CONVERSATIONS, one=ITEMS, call=st.sampled_from(["item", "delete_item"]))
    def use_item(self, tenant: str, name: str, one: str, call: str) -> None:
        self.both(call, tenant, name, one)

    @rule(tenant=TENANTS, name=CONVERSATIONS, size=SIZES)
    def update(self, tenant: str, name: str, size: int) -> None:
        self.both("update_conversation", tenant, name, b'{"k":"%s"}' % (b"v" * size))

    @rule(
        tenant=TENANTS, name=CONVERSATIONS,
        call=st.sampled_from(["conversation", "conversation_history", "delete_conversation"]),
    )  # fmt: skip
    def use_conversation(self, tenant: str, name: str, call: str) -> None:
        self.both(call, tenant, name)

    # ---- time and restarts ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from([5.0, TTL_S / 2, TTL_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.now += 1
        self.ledger = Ledger(self.settings, lambda: self.now)
        self.model.restart(self.now)

    @invariant()
    @precondition(lambda self: hasattr(self, "ledger"))
    def nothing_is_wrong(self) -> None:
        assert self.ledger.check() == []
        assert self.ledger.num_bytes() == self.model.num_bytes
        known = self.ledger._database.execute(
            "SELECT tenant, id FROM responses WHERE NOT is_deleted UNION SELECT tenant, id FROM conversations"
        )
        assert set(known) == self.model.known


Lives.TestCase.settings = settings(
    max_examples=2000 if SLOW else 25,
    stateful_step_count=40,
    deadline=None,
    derandomize=not SLOW,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestLives = Lives.TestCase
