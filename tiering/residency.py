"""The life of a block as data: which event is legal in which state, and where it leads."""

from __future__ import annotations

from tiering.types import BlockEvent, BlockState, IllegalTransitionError

TRANSITIONS: dict[tuple[BlockState, BlockEvent], BlockState] = {
    (BlockState.FREE, BlockEvent.ALLOCATE): BlockState.FILLING,
    (BlockState.FILLING, BlockEvent.PUBLISH): BlockState.READY,
    (BlockState.FILLING, BlockEvent.DISCARD): BlockState.FREE,
    (BlockState.READY, BlockEvent.EVICT): BlockState.FREE,
    (BlockState.READY, BlockEvent.FORGET): BlockState.FILLING,
    (BlockState.COPYING_OUT, BlockEvent.FORGET): BlockState.COPYING_OUT,
    (BlockState.READY, BlockEvent.COPY_OUT): BlockState.COPYING_OUT,
    (BlockState.FILLING, BlockEvent.COPY_OUT): BlockState.COPYING_OUT,
    (BlockState.COPYING_OUT, BlockEvent.COPIED_NAMED): BlockState.READY,
    (BlockState.COPYING_OUT, BlockEvent.COPIED_NAMELESS): BlockState.FILLING,
    (BlockState.FILLING, BlockEvent.COPY_IN): BlockState.COPYING_IN,
    (BlockState.COPYING_IN, BlockEvent.ARRIVE_NAMED): BlockState.READY,
    (BlockState.COPYING_IN, BlockEvent.ARRIVE_NAMELESS): BlockState.FILLING,
    (BlockState.COPYING_IN, BlockEvent.ABANDON): BlockState.FILLING,
}


def next_state(state: BlockState, event: BlockEvent) -> BlockState:
    """State after ``event``. Raises IllegalTransitionError if the event is not legal in ``state``."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"a {state.value} block cannot {event.value}") from None
