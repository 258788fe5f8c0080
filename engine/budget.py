"""What one step may still take on: tokens to compute and sequences to run."""

from __future__ import annotations


class StepBudget:
    """Counts down over the stages of one ``schedule`` call."""

    __slots__ = ("num_seqs", "num_tokens")

    def __init__(self, num_tokens: int, num_seqs: int) -> None:
        self.num_tokens = num_tokens
        self.num_seqs = num_seqs

    @property
    def exhausted(self) -> bool:
        return self.num_tokens <= 0 or self.num_seqs <= 0

    def has_room_for(self, num_seqs: int) -> bool:
        """Whether so many sequences can take a token each."""
        return num_seqs <= min(self.num_seqs, self.num_tokens)

    def take_one_each(self, num_seqs: int) -> None:
        """Spend a token on each of so many sequences, for which there is room."""
        assert self.has_room_for(num_seqs)
        self.num_tokens -= num_seqs
        self.num_seqs -= num_seqs

    def take(self, wanted_tokens: int) -> int:
        """Spend on one sequence; returns the tokens granted (at most ``wanted_tokens``, at least 1)."""
        assert not self.exhausted
        granted = min(wanted_tokens, self.num_tokens)
        self.num_tokens -= granted
        self.num_seqs -= 1
        return granted
