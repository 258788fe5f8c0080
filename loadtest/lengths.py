"""Prompt and answer lengths to replay, in tokens: a trace without its times. Pure, but for reading a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.traces import Trace, TraceError, read_trace

BUILT_IN = ("alpaca", "sharegpt")  # those that the PagedAttention paper has
MAX_TOKENS = 200_000  # of one request


class LengthsError(ValueError):
    """A file of lengths cannot be used. The message is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request: tokens of its prompt, and of its answer, which is forced to that length."""

    prompt: int
    output: int


def built_in(name: str) -> list[Lengths]:
    """The lengths that come with the load test, by one of the names in ``BUILT_IN``."""
    assert name in BUILT_IN
    return _of(read_trace(name))


def read_lengths(path: Path) -> list[Lengths]:
    """Those of a trace, in any format that ``loadtest.traces`` reads. Raises LengthsError."""
    try:
        return _of(read_trace(path))
    except TraceError as error:
        raise LengthsError(str(error)) from None


def _of(trace: Trace) -> list[Lengths]:
    if max(row.input_len + row.output_len for row in trace.rows) > MAX_TOKENS:
        raise LengthsError(f"{trace.name} has a request of more than {MAX_TOKENS} tokens.")
    return [Lengths(row.input_len, row.output_len) for row in trace.rows]
