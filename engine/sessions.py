"""What is known of sessions: the names of their blocks, and how long they stay away between their turns.

Runs on: step thread, sole owner. Pure bookkeeping; no clock. Bounds: so many sessions, so many names over all
of them and in each; the sessions that were used longest ago go first. Nothing here is per token: a turn is
noted when it comes and when it ends.
"""

from __future__ import annotations

from collections import OrderedDict, abc
from dataclasses import dataclass, field

from engine.request import SequenceGroup
from engine.sequence import Sequence
from engine.stats import SessionKv
from tiering.block_manager import BlockManager
from tiering.types import BlockHash
from tiering.whereabouts import cells

_MAX_SESSIONS = 2**14
_MAX_TENANTS = 2**10
_MAX_NAMES = 2**18
_MAX_NAMES_EACH = 2**14
_NEWEST_SHARE = 0.3  # of the newest gap in a mean


@dataclass(slots=True)
class _Gap:
    """A decayed mean of the seconds between a turn's end and the next one's coming."""

    seconds: float | None = None

    def note(self, seconds: float) -> None:
        if self.seconds is None:
            self.seconds = seconds
        else:
            self.seconds += _NEWEST_SHARE * (seconds - self.seconds)


@dataclass(slots=True)
class Session:
    """``names`` are those of all its branches, in the order in which they came up.

    ``num_tokens`` are those of the turn that came or ended last. ``ended_at``: when its last turn ended, in
    seconds; None while one runs, and before the first.
    """

    names: dict[BlockHash, None] = field(default_factory=dict)
    num_tokens: int = 0
    num_running: int = 0
    ended_at: float | None = None
    gap: _Gap = field(default_factory=_Gap)


class Sessions:
    """Sessions by name, for all tenants: no two have a name in common."""

    def __init__(
        self,
        max_sessions: int = _MAX_SESSIONS,
        max_names: int = _MAX_NAMES,
        max_names_each: int = _MAX_NAMES_EACH,
        max_tenants: int = _MAX_TENANTS,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_names = max_names
        self._max_names_each = max_names_each
        self._max_tenants = max_tenants
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._gaps_of_tenants: OrderedDict[str, _Gap] = OrderedDict()
        self._gap_of_all = _Gap()
        self._num_names = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, name: str) -> Session | None:
        """What is known of a session."""
        return self._sessions.get(name)

    def begin_turn(self, name: str, tenant: str, num_tokens: int, now: float) -> None:
        """A turn of ``num_tokens`` so far has come. If none runs, that it was away so long is noted."""
        session = self._sessions.setdefault(name, Session())
        if session.ended_at is not None:
            self._note_gap(session, tenant, now - session.ended_at)
        session.ended_at = None
        session.num_running += 1
        session.num_tokens = num_tokens
        self._make_room(name)

    def end_turn(self, name: str, now: float) -> None:
        """A turn is over, however it ended."""
        session = self._sessions.get(name)
        if session is None or not session.num_running:
            return  # it was forgotten meanwhile, and may have come anew
        session.num_running -= 1
        if not session.num_running:
            session.ended_at = now

    def note_blocks(self, name: str, names: abc.Iterable[BlockHash], num_tokens: int) -> None:
        """A history of the session has these blocks, from the first on, and so many tokens."""
        session = self._sessions.setdefault(name, Session())
        session.num_tokens = num_tokens
        before = len(session.names)
        for block in names:
            if len(session.names) >= self._max_names_each:
                break
            session.names[block] = None
        self._num_names += len(session.names) - before
        self._make_room(name)

    def expected_gap_s(self, name: str, tenant: str) -> float | None:
        """How long the session is expected to stay away; None if nothing was ever measured.

        Before its own first return that is as long as others of its tenant, or of all tenants.
        """
        session, of_tenant = self._sessions.get(name), self._gaps_of_tenants.get(tenant)
        for gap in (None if session is None else session.gap, of_tenant, self._gap_of_all):
            if gap is not None and gap.seconds is not None:
                return gap.seconds
        return None

    def problems(self, running: abc.Mapping[str, int]) -> list[str]:
        """What does not add up; ``running`` has the number of turns that run, by session."""
        sessions = self._sessions
        found = []
        if self._num_names != sum(len(session.names) for session in sessions.values()):
            found.append("the count of the names of sessions' blocks is off")
        if len(sessions) > self._max_sessions or self._num_names > max(self._max_names, self._max_names_each):
            found.append("more is known of sessions than there is room for")
        for name, session in sessions.items():
            if session.num_running > running.get(name, 0):
                found.append(f"session {name} has more turns running than there are")
            if session.ended_at is not None and session.num_running:
                found.append(f"session {name} runs and has ended")
        return found

    # ---- inside --------------------------------------------------------------------------------

    def _note_gap(self, session: Session, tenant: str, seconds: float) -> None:
        of_tenant = self._gaps_of_tenants.setdefault(tenant, _Gap())
        self._gaps_of_tenants.move_to_end(tenant)
        if len(self._gaps_of_tenants) > self._max_tenants:
            self._gaps_of_tenants.popitem(last=False)
        for gap in (session.gap, of_tenant, self._gap_of_all):
            gap.note(seconds)

    def _make_room(self, name: str) -> None:
        """``name`` was used just now; forget what was used longest ago, if need be."""
        self._sessions.move_to_end(name)
        while len(self._sessions) > self._max_sessions or (
            self._num_names > self._max_names and len(self._sessions) > 1
        ):
            _, forgotten = self._sessions.popitem(last=False)
            self._num_names -= len(forgotten.names)


def computed_names(sequence: Sequence, block_size: int) -> abc.Sequence[BlockHash]:
    """Names of the blocks of a sequence that are full, or were when it lost them."""
    num_tokens = max(sequence.num_computed_tokens, sequence.num_known_tokens)
    return sequence.block_names[: num_tokens // block_size]


def describe(
    name: str, session: Session | None, live: abc.Iterable[SequenceGroup], blocks: BlockManager
) -> SessionKv:
    """Where a session's blocks are, those of its turns that are ``live`` included."""
    names = {} if session is None else session.names.copy()
    num_tokens = 0 if session is None else session.num_tokens
    for group in live:
        for sequence in group.sequences:
            num_tokens = max(num_tokens, sequence.num_tokens)
            names.update(dict.fromkeys(computed_names(sequence, blocks.block_size)))
    return SessionKv(name, num_tokens, cells(blocks.tiers, names) if blocks.prefix_caching else "")
