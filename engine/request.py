"""One request as the engine knows it: its tokens, how far they are computed, and its status.

Runs on: step thread, sole owner. Status changes go through a transition table; an illegal one
raises and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from engine.messages import AddRequest, FinishReason, SamplingParams
from tiering.hashing import ROOT, BlockNamer
from tiering.types import BlockHash, IllegalTransitionError


class RequestStatus(enum.Enum):
    """Where a request and its KV are.

    ``WAITING`` holds nothing: it never ran, or lost its KV (its tokens are all kept). ``SWAPPED`` and
    ``SWAPPING_OUT`` hold host slots, the others device blocks. ``RESTORING`` may be computed at its front
    while its tail is loaded; ``SWAPPING_IN`` only waits.
    """

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPING_OUT = "swapping_out"
    SWAPPED = "swapped"
    SWAPPING_IN = "swapping_in"
    RESTORING = "restoring"
    FINISHED = "finished"


class RequestEvent(enum.Enum):
    """What can happen to a request."""

    ADMIT = "be admitted"
    LOAD = "be loaded"
    OVERLAP = "be restored from both ends"
    RESTORED = "be whole again"
    PREEMPT = "lose its blocks"
    SWAP_OUT = "be swapped out"
    SWAPPED = "end its swap-out"
    GO_BACK = "go back to its host slots"
    FINISH = "finish"


_S, _E = RequestStatus, RequestEvent
TRANSITIONS: dict[tuple[RequestStatus, RequestEvent], RequestStatus] = {
    (_S.WAITING, _E.ADMIT): _S.RUNNING,
    (_S.WAITING, _E.LOAD): _S.SWAPPING_IN,
    (_S.WAITING, _E.OVERLAP): _S.RESTORING,
    (_S.RUNNING, _E.PREEMPT): _S.WAITING,
    (_S.RUNNING, _E.SWAP_OUT): _S.SWAPPING_OUT,
    (_S.SWAPPING_OUT, _E.SWAPPED): _S.SWAPPED,
    (_S.SWAPPING_OUT, _E.PREEMPT): _S.WAITING,
    (_S.SWAPPED, _E.ADMIT): _S.RUNNING,
    (_S.SWAPPED, _E.LOAD): _S.SWAPPING_IN,
    (_S.SWAPPED, _E.OVERLAP): _S.RESTORING,
    (_S.SWAPPING_IN, _E.RESTORED): _S.RUNNING,
    (_S.SWAPPING_IN, _E.PREEMPT): _S.WAITING,
    (_S.SWAPPING_IN, _E.GO_BACK): _S.SWAPPED,
    (_S.RESTORING, _E.RESTORED): _S.RUNNING,
    (_S.RESTORING, _E.GO_BACK): _S.SWAPPED,
    (_S.RESTORING, _E.PREEMPT): _S.WAITING,
    **{(status, _E.FINISH): _S.FINISHED for status in _S if status is not _S.FINISHED},
}


class Request:
    """A prompt, what was generated for it, and how many of those tokens have their KV computed.

    ``num_given_way`` counts the preemptions in favour of another request, not those because its client
    did not read. ``num_known_tokens`` is how many tokens had their KV computed, or found, at best: what of
    them has to be computed again is recomputation. ``may_load`` is False once a load has failed it, until it
    is swapped out anew.
    """

    __slots__ = (
        "_namer",
        "arrival_index",
        "block_names",
        "expected_return_s",
        "is_counted",
        "max_total_tokens",
        "may_load",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_given_way",
        "num_known_tokens",
        "num_preemptions",
        "output_token_ids",
        "paused",
        "priority",
        "prompt_token_ids",
        "request_id",
        "sampling",
        "status",
    )

    def __init__(self, message: AddRequest, *, arrival_index: int, namer: BlockNamer, max_len: int) -> None:
        self.request_id = message.request_id
        self.prompt_token_ids = message.prompt_token_ids
        self.sampling: SamplingParams = message.sampling
        self.priority = message.priority
        self.expected_return_s = message.expected_return_s
        self.arrival_index = arrival_index
        self.output_token_ids: list[int] = []
        self.max_total_tokens = min(len(self.prompt_token_ids) + self.sampling.max_tokens, max_len)
        self.status = RequestStatus.WAITING
        self.paused = False
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_given_way = 0
        self.num_known_tokens = 0
        self.may_load = True
        self.is_counted = False
        self.block_names: list[BlockHash] = []
        self._namer = namer

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first: the lower priority number, then the earlier arrival."""
        return (self.priority, self.arrival_index)

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    def move(self, event: RequestEvent) -> None:
        """Change status. Raises IllegalTransitionError if the present status forbids ``event``."""
        try:
            self.status = TRANSITIONS[self.status, event]
        except KeyError:
            raise IllegalTransitionError(
                f"request {self.request_id} is {self.status.value} and cannot {event.value}"
            ) from None

    def token_slice(self, start: int, stop: int) -> Sequence[int]:
        """Known tokens ``[start, stop)``. Costs their number, not the length of the history."""
        boundary = len(self.prompt_token_ids)
        if start >= boundary:
            return self.output_token_ids[start - boundary : stop - boundary]
        if stop <= boundary:
            return self.prompt_token_ids[start:stop]
        return [*self.prompt_token_ids[start:], *self.output_token_ids[: stop - boundary]]

    def name_blocks(self, num_tokens: int) -> list[BlockHash]:
        """Names of the full blocks among the first ``num_tokens`` tokens (and maybe more)."""
        size = self._namer.block_size
        for index in range(len(self.block_names), num_tokens // size):
            parent = self.block_names[-1] if self.block_names else ROOT
            token_ids = self.token_slice(index * size, (index + 1) * size)
            self.block_names.append(self._namer.name(parent, token_ids))
        return self.block_names

    def banned_token_ids(self, stop_token_ids: Sequence[int]) -> Sequence[int]:
        """Tokens that may not be drawn next: those that would end a text shorter than asked for."""
        if len(self.output_token_ids) >= self.sampling.min_tokens:
            return ()
        return (*stop_token_ids, *self.sampling.stop_token_ids)

    def finish_reason_after(self, token_id: int, stop_token_ids: frozenset[int]) -> FinishReason | None:
        """Whether the token just appended ends the request, and why."""
        ends_text = token_id in stop_token_ids and not self.sampling.ignore_eos
        if len(self.output_token_ids) >= self.sampling.min_tokens and (
            ends_text or token_id in self.sampling.stop_token_ids
        ):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_tokens >= self.max_total_tokens else None
