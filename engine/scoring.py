"""How likely a prompt was: its log probabilities as far as they are found, from the front on.

Runs on: step thread, sole owner. Pure bookkeeping. What is found is kept over preemptions, so only the
positions behind it are ever asked for; and those must be computed, whoever else has their KV.
"""

from __future__ import annotations

from collections import abc

from engine.messages import PromptLogprobs
from engine.schedule import ScoreSpec


class PromptScoring:
    """Of the second and all later tokens of one prompt, with ``num_top`` alternatives each."""

    __slots__ = ("_found", "_num_top", "_prompt_token_ids", "num_found")

    def __init__(self, prompt_token_ids: abc.Sequence[int], num_top: int) -> None:
        self._prompt_token_ids = prompt_token_ids
        self._num_top = num_top
        self._found: list[PromptLogprobs] = []
        self.num_found = 0

    @property
    def is_complete(self) -> bool:
        return self.num_found == len(self._prompt_token_ids) - 1

    def ask(self, start: int, stop: int) -> ScoreSpec | None:
        """What a chunk ``[start, stop)`` is to bring; None if that is nothing new."""
        assert start <= self.num_found or self.is_complete, "a position was skipped"
        first, last = self.num_found, min(stop, len(self._prompt_token_ids) - 1)
        if first >= last:
            return None
        return ScoreSpec(first, self._prompt_token_ids[first + 1 : last + 1], self._num_top)

    def take_in(self, found: PromptLogprobs) -> None:
        """What was asked for last."""
        self._found.append(found)
        self.num_found += len(found)

    def whole(self) -> PromptLogprobs:
        """All of it, which must be found."""
        assert self.is_complete
        return PromptLogprobs(
            b"".join(part.logprobs for part in self._found),
            b"".join(part.ranks for part in self._found),
            b"".join(part.top_ids for part in self._found),
            b"".join(part.top_logprobs for part in self._found),
            max((part.num_top for part in self._found), default=0),
        )
