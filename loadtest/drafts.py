"""Conversations without words yet: how long each turn is, and what its prompt is made of. Pure.

What does not fit the server's window is left out and counted, never cut: of a conversation, the first turn
that does not fit and all after it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadtest.prompts import TemplateCost
from loadtest.spreads import Spread
from loadtest.traces import Trace, TraceRow

_MOST_MISSES = 1000  # draws in a row of which none fits
_NO_ROW = TraceRow(None, 0, 0)  # where there is no trace, and all lengths are spreads


@dataclass(frozen=True, slots=True)
class Draft:
    """One turn. ``input_len`` is what it adds to the history, with the template around it."""

    input_len: int
    output_len: int
    block_ids: tuple[int, ...] = ()
    block_len: int = 0
    at_s: float | None = None  # by the trace


@dataclass(frozen=True, slots=True)
class Room:
    """What a prompt must leave room for."""

    cost: TemplateCost
    max_model_len: int | None

    def shared_with(self, other: Room) -> Room:
        """What is left of both: what fits it fits either."""
        windows = [room.max_model_len for room in (self, other) if room.max_model_len is not None]
        first, later = (
            max(getattr(room.cost, turn) for room in (self, other)) for turn in ("first", "later")
        )
        return Room(TemplateCost(first, later), min(windows, default=None))

    def num_words(self, turn: int, draft: Draft) -> int:
        """Tokens of the text itself, below 1 where the template alone takes more than there should be."""
        return draft.input_len - (self.cost.later if turn else self.cost.first)

    def num_fitting(self, turns: Sequence[Draft]) -> int:
        """Turns of a conversation before the first that does not fit."""
        history = 0
        for turn, draft in enumerate(turns):
            history += draft.input_len + draft.output_len
            is_too_long = self.max_model_len is not None and history > self.max_model_len
            if is_too_long or self.num_words(turn, draft) < 1:
                return turn
        return len(turns)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many; what is None sets no limit. ``until_s``: start of a conversation, by the trace."""

    conversations: int | None = None
    requests: int | None = None
    until_s: float | None = None


@dataclass(slots=True)
class Drafts:
    """Those that fit, until there are as many as wanted."""

    room: Room
    wanted: Wanted
    conversations: list[tuple[Draft, ...]] = field(default_factory=list)
    num_requests: int = 0
    dropped: int = 0

    @property
    def is_enough(self) -> bool:
        wanted = self.wanted
        return (wanted.conversations is not None and len(self.conversations) >= wanted.conversations) or (
            wanted.requests is not None and self.num_requests >= wanted.requests
        )

    def take(self, turns: Sequence[Draft]) -> bool:
        """Whether anything was taken. A conversation with more requests than are wanted ends early."""
        fitting = self.room.num_fitting(turns)
        self.dropped += len(turns) - fitting
        if self.wanted.requests is not None:
            fitting = min(fitting, self.wanted.requests - self.num_requests)
        if fitting:
            self.conversations.append(tuple(turns[:fitting]))
            self.num_requests += fitting
        return fitting > 0


@dataclass(frozen=True, slots=True)
class LengthSource:
    """Where lengths come from; a spread that is None leaves it to the trace.

    ``prefix_len`` comes before the prompt of a first turn, beyond its length.
    """

    trace: Trace | None
    inputs: Spread | None
    outputs: Spread | None
    later_inputs: Spread | None
    turns: Spread
    prefix_len: int

    def draft(self, row: TraceRow, rng: random.Random) -> Draft:
        """A first turn; only one as long as the trace has it keeps the blocks of the trace."""
        has_blocks = self.inputs is None
        return Draft(
            _length(self.inputs, row.input_len, rng) + self.prefix_len,
            _length(self.outputs, row.output_len, rng),
            row.block_ids if has_blocks else (),
            row.block_len if has_blocks else 0,
            row.at_s,
        )

    def later_draft(self, history: int, row: TraceRow, rng: random.Random) -> Draft:
        """What a turn adds; ``history`` is what a row of a session counts in its prompt before that."""
        return Draft(
            _length(self.later_inputs or self.inputs, row.input_len - history, rng),
            _length(self.outputs, row.output_len, rng),
            at_s=row.at_s,
        )


def _length(spread: Spread | None, by_trace: int, rng: random.Random) -> int:
    length = by_trace if spread is None else spread.draw_whole(rng)
    assert length >= 1
    return length


def replayed(lengths: LengthSource, room: Room, wanted: Wanted, rng: random.Random) -> Drafts:
    """The rows of the trace in their order; rows of a session are turns of one conversation."""
    assert lengths.trace is not None
    drafts = Drafts(room, wanted)
    for rows in _sessions(lengths.trace.rows):
        start_s = rows[0].at_s
        if drafts.is_enough or (
            wanted.until_s is not None and start_s is not None and start_s >= wanted.until_s
        ):
            break
        later = (
            lengths.later_draft(before.input_len + before.output_len, row, rng)
            for before, row in pairwise(rows)
        )
        drafts.take([lengths.draft(rows[0], rng), *later])
    return drafts


def drawn(lengths: LengthSource, room: Room, wanted: Wanted, rng: random.Random) -> Drafts:
    """Conversations drawn until there are as many as wanted, or hardly any fits."""
    rows = lengths.trace.rows if lengths.trace is not None else (_NO_ROW,)
    drafts = Drafts(room, wanted)
    misses = 0
    while not drafts.is_enough and misses < _MOST_MISSES:
        turns = [lengths.draft(rng.choice(rows), rng)]
        for _ in range(1, lengths.turns.draw_whole(rng)):
            turns.append(lengths.later_draft(0, rng.choice(rows), rng))
        misses = 0 if drafts.take(turns) else misses + 1
    return drafts


def _sessions(rows: Sequence[TraceRow]) -> Iterator[list[TraceRow]]:
    """Rows by conversation, in the order in which these begin.

    A row whose prompt is no longer than the session's history does not go on with it, and begins anew.
    """
    found: list[list[TraceRow]] = []
    latest: dict[str, list[TraceRow]] = {}
    for row in rows:
        known = latest.get(row.session) if row.session is not None else None
        if known is not None and row.input_len > known[-1].input_len + known[-1].output_len:
            known.append(row)
            continue
        found.append([row])
        if row.session is not None:
            latest[row.session] = found[-1]
    return iter(found)
