"""One request as the engine knows it: a group of sequences that go through life together, and their status.

Runs on: step thread, sole owner. Status changes go through a transition table; an illegal one
raises and changes nothing.
"""

from __future__ import annotations

import enum
from collections import abc

from engine.beam import BeamSearch
from engine.messages import AddRequest, PromptLogprobs, SamplingParams
from engine.schedule import SampleSpec
from engine.scoring import PromptScoring
from engine.sequence import Sequence
from tiering.hashing import BlockNamer
from tiering.outlook import NO_OUTLOOK, Keep, Outlook
from tiering.restore import Restore
from tiering.types import IllegalTransitionError

MAX_PREEMPTIONS = 4
_SEED_MASK = 2**63 - 1


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


class SequenceGroup:
    """The sequences of one request: one prompt, computed once, then ``sampling.num_seqs`` continuations.

    They are admitted, preempted, swapped and restored together, and take their next tokens in the same step.
    ``num_given_way`` counts the preemptions in favour of another request, not those because its client did
    not read. ``may_load`` is False once a load has failed it, until it is swapped out anew. ``has_branched``:
    the prompt is computed, and every sequence has its first token; ``unwanted`` are indices of those that
    were aborted before. ``given_up``: the last restore that came to nothing, which may yet have brought
    blocks. ``cache_salt`` is the tenant's. ``scoring``: log probabilities of the prompt that are still to be
    told. ``outlook``: what it has said of keeping its blocks. ``idle_since``: when it last got something
    computed, or came, or its client began to read again; ``is_overdue``: that was too long ago once.
    ``stays_until_step``: it gives way for another tenant's share only from then on. ``ends``: the tokens that
    end a text that is long enough.
    """

    __slots__ = (
        "_next_index",
        "arrival_index",
        "beams",
        "cache_salt",
        "ends",
        "expected_return_s",
        "given_up",
        "has_branched",
        "idle_since",
        "is_counted",
        "is_overdue",
        "max_total_tokens",
        "may_load",
        "num_cached_tokens",
        "num_given_way",
        "num_preemptions",
        "outlook",
        "paused",
        "priority",
        "request_id",
        "sampling",
        "scoring",
        "sequences",
        "session",
        "status",
        "stays_until_step",
        "tenant",
        "unwanted",
        "weight",
    )

    def __init__(
        self,
        message: AddRequest,
        *,
        arrival_index: int,
        namer: BlockNamer,
        max_len: int,
        stop_token_ids: tuple[int, ...],
        now: float = 0.0,
    ) -> None:
        self.request_id = message.request_id
        self.sampling: SamplingParams = message.sampling
        self.tenant = message.tenant
        self.weight = message.weight
        self.priority = message.priority
        self.expected_return_s = message.expected_return_s
        self.session = message.session
        self.outlook = _outlook(message)
        self.cache_salt = message.cache_salt
        self.arrival_index = arrival_index
        self.sequences = [Sequence(message.request_id, 0, message.prompt_token_ids, namer)]
        self.max_total_tokens = min(len(message.prompt_token_ids) + self.sampling.max_tokens, max_len)
        model_ends = () if self.sampling.ignore_eos else stop_token_ids
        self.ends = frozenset((*model_ends, *self.sampling.stop_token_ids))
        self.status = RequestStatus.WAITING
        self.paused = False
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_given_way = 0
        self.may_load = True
        self.is_counted = False
        self.idle_since = now
        self.stays_until_step = 0
        self.is_overdue = False
        self.given_up: Restore | None = None
        self.has_branched = False
        self.unwanted: set[int] = set()
        self.beams = self._new_search()
        self.scoring = self._new_scoring()
        self._next_index = 1

    def _new_search(self) -> BeamSearch | None:
        if self.sampling.beam is None:
            return None
        max_tokens = self.max_total_tokens - len(self.sequences[0].prompt_token_ids)
        return BeamSearch(self.sampling.beam, self.ends, max_tokens)

    def _new_scoring(self) -> PromptScoring | None:
        num_top = self.sampling.prompt_logprobs
        return None if num_top is None else PromptScoring(self.first.prompt_token_ids, num_top)

    @property
    def has_whole_length(self) -> bool:
        """Whether it has given way so often that it is to have blocks for its whole length."""
        return self.num_given_way >= MAX_PREEMPTIONS

    @property
    def first(self) -> Sequence:
        """The sequence that computes what all have in common."""
        return self.sequences[0]

    @property
    def num_seqs(self) -> int:
        """Places in a step that the group takes, or will take once its prompt is computed."""
        return len(self.sequences) if self.has_branched else self.sampling.num_seqs

    @property
    def num_active(self) -> int:
        """Sequences that may take part in a step; who only waits for loads keeps no place from others."""
        keeps_place = not self.paused and self.status in (RequestStatus.RUNNING, RequestStatus.RESTORING)
        return self.num_seqs if keeps_place else 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.first.prompt_token_ids)

    @property
    def generates_nothing(self) -> bool:
        """Whether it is over when its prompt is computed."""
        return self.sampling.max_tokens == 0

    @property
    def is_turn(self) -> bool:
        """Whether it is a turn of a session; what only computes its prompt makes ready for one."""
        return bool(self.session) and not self.generates_nothing

    def num_readable_tokens(self, num_tokens: int) -> int:
        """How many of its first ``num_tokens`` tokens may be taken from whoever has their KV.

        The rest must be computed, for their log probabilities.
        """
        if self.scoring is None or self.scoring.is_complete:
            return num_tokens
        return min(num_tokens, self.scoring.num_found)

    @property
    def is_decoding(self) -> bool:
        """Whether all that is left to compute is the last token of each sequence."""
        for sequence in self.sequences:  # noqa: SIM110
            if sequence.num_uncomputed_tokens != 1:
                return False
        return True

    @property
    def only_decodes(self) -> bool:
        """Whether each step, until something ends, draws the next token of each sequence and does no more."""
        return (
            self.has_branched
            and self.beams is None
            and self.is_decoding
            and all(len(s.output_token_ids) >= self.sampling.min_tokens for s in self.sequences)
        )

    @property
    def is_prefilling(self) -> bool:
        """Whether it has blocks, and more to compute than the tokens that come next."""
        if self.status is RequestStatus.RUNNING:
            return not self.is_decoding
        return self.status is RequestStatus.RESTORING

    def sequence(self, index: int) -> Sequence | None:
        """The living sample with that index; None for beams, which have no names."""
        named = () if self.beams is not None else self.sequences
        return next((sequence for sequence in named if sequence.index == index), None)

    def ask(self, sequence: Sequence, stop_token_ids: abc.Sequence[int]) -> SampleSpec:
        """What is to follow a sequence's last token; ``stop_token_ids`` are those of the model.

        The prompt is followed by the first tokens of all its continuations.
        """
        beams = self.beams
        return SampleSpec(
            params=self.sampling,
            seeds=self.seeds(sequence) if beams is None else (),
            position=sequence.num_tokens,
            prompt_token_ids=sequence.prompt_token_ids,
            output_token_ids=sequence.output_token_ids,
            banned_token_ids=sequence.banned_token_ids(self.sampling, stop_token_ids),
            num_candidates=0 if beams is None else beams.num_candidates,
            ends=frozenset() if beams is None else beams.stop_token_ids,
            cache_salt=self.cache_salt,
        )

    def seeds(self, sequence: Sequence) -> tuple[int, ...]:
        """One for each token that is to follow a sequence's last one."""
        if self.has_branched:
            return ((self.sampling.seed + sequence.index) & _SEED_MASK,)
        return tuple((self.sampling.seed + index) & _SEED_MASK for index in range(self.sampling.n))

    def tell_prompt_logprobs(self) -> PromptLogprobs | None:
        """The prompt's log probabilities, once, if they were asked for."""
        scoring, self.scoring = self.scoring, None
        return None if scoring is None else scoring.whole()

    def fork(self, parent: Sequence) -> Sequence:
        """A further sequence with the history of ``parent``, which is to be added to ``sequences``."""
        index, self._next_index = self._next_index, self._next_index + 1
        return parent.fork(f"{self.request_id}#{index}", index)

    def move(self, event: RequestEvent) -> None:
        """Change status. Raises IllegalTransitionError if the present status forbids ``event``."""
        try:
            self.status = TRANSITIONS[self.status, event]
        except KeyError:
            raise IllegalTransitionError(
                f"request {self.request_id} is {self.status.value} and cannot {event.value}"
            ) from None


def _outlook(message: AddRequest) -> Outlook:
    retention = message.retention
    if retention is None:
        return NO_OUTLOOK
    keep = Keep(message.tenant, retention.keep_s, message.kv_quota) if retention.keep_s else None
    return Outlook(keep=keep, stays_off_disk=retention.lowest == "host")
