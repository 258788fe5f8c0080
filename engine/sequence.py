"""One token history as the engine knows it: its tokens, how far they are computed, the names of its blocks.

Runs on: step thread, sole owner. Pure bookkeeping.
"""

from __future__ import annotations

from collections import abc

from engine.messages import FinishReason, SamplingParams
from tiering.hashing import ROOT, BlockNamer
from tiering.types import BlockHash


class Sequence:
    """A prompt, what was generated for it, and how many of those ``num_tokens`` have their KV computed.

    ``index`` tells it from the others of its request. ``num_known_tokens`` is how many tokens had their KV
    computed, or found, at best: what of them has to be computed again is recomputation.
    ``num_charged_tokens`` is for how many of them the tenant was charged.
    """

    __slots__ = (
        "_namer",
        "block_names",
        "index",
        "num_charged_tokens",
        "num_computed_tokens",
        "num_known_tokens",
        "num_tokens",
        "output_token_ids",
        "prompt_token_ids",
        "sequence_id",
    )

    def __init__(
        self, sequence_id: str, index: int, prompt_token_ids: tuple[int, ...], namer: BlockNamer
    ) -> None:
        self.sequence_id = sequence_id
        self.index = index
        self.prompt_token_ids = prompt_token_ids
        self.output_token_ids: list[int] = []
        self.num_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_known_tokens = 0
        self.num_charged_tokens = 0
        self.block_names: list[BlockHash] = []
        self._namer = namer

    def fork(self, sequence_id: str, index: int) -> Sequence:
        """Another sequence with the same history, computed as far."""
        twin = Sequence(sequence_id, index, self.prompt_token_ids, self._namer)
        twin.output_token_ids = self.output_token_ids.copy()
        twin.num_tokens = self.num_tokens
        twin.num_computed_tokens = self.num_computed_tokens
        twin.num_known_tokens = self.num_known_tokens
        twin.num_charged_tokens = self.num_charged_tokens
        twin.block_names = self.block_names.copy()
        return twin

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    def charge(self, start: int, stop: int) -> int:
        """How many of the tokens ``[start, stop)`` were not charged for yet; from now on they are."""
        num_new = max(0, stop - max(start, self.num_charged_tokens))
        self.num_charged_tokens = max(stop, self.num_charged_tokens)
        return num_new

    def append(self, token_id: int) -> None:
        """Its next token. Whoever is charged for that is charged for computing its KV, too."""
        self.output_token_ids.append(token_id)
        self.num_tokens += 1
        self.num_charged_tokens = self.num_tokens

    def token_slice(self, start: int, stop: int) -> abc.Sequence[int]:
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

    def banned_token_ids(
        self, sampling: SamplingParams, stop_token_ids: abc.Sequence[int]
    ) -> abc.Sequence[int]:
        """Tokens that may not come next: those that would end a text shorter than asked for."""
        if len(self.output_token_ids) >= sampling.min_tokens:
            return ()
        return (*stop_token_ids, *sampling.stop_token_ids)

    def finish_reason(
        self, sampling: SamplingParams, stop_token_ids: frozenset[int], max_total_tokens: int
    ) -> FinishReason | None:
        """Whether the token just appended ends the sequence, and why. The end of a grammar always does."""
        token_id = self.output_token_ids[-1]
        is_long_enough = len(self.output_token_ids) >= sampling.min_tokens
        ends_text = token_id in stop_token_ids and not sampling.ignore_eos
        if ends_text and (is_long_enough or sampling.grammar is not None):
            return FinishReason.STOP
        if is_long_enough and token_id in sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_tokens >= max_total_tokens else None
