"""Prompt and answer lengths to replay, in tokens. Pure, but for reading a file."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

BUILT_IN = ("alpaca", "sharegpt")
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
    packed = resources.files("loadtest").joinpath("data", f"{name}.csv.gz").read_bytes()
    return _parse(gzip.decompress(packed).decode(), name)


def read_lengths(path: Path) -> list[Lengths]:
    """Columns ``input_length`` and ``output_length`` of a CSV file, gzipped or not. Raises LengthsError."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError):
        raise LengthsError(f"{path} is not a text file, gzipped or not.") from None
    except OSError as error:
        raise LengthsError(f"{path} cannot be read: {error.strerror or error}.") from None
    return _parse(text, str(path))


def _parse(text: str, name: str) -> list[Lengths]:
    rows = csv.DictReader(text.splitlines())
    if not {"input_length", "output_length"} <= set(rows.fieldnames or ()):
        raise LengthsError(f"{name} must have the columns input_length and output_length.")
    try:
        found = [Lengths(int(row["input_length"]), int(row["output_length"])) for row in rows]
    except (TypeError, ValueError):
        raise LengthsError(f"{name} must have whole numbers in input_length and output_length.") from None
    if not found:
        raise LengthsError(f"{name} has no rows.")
    if any(pair.prompt < 1 or pair.output < 1 for pair in found):
        raise LengthsError(f"{name} has a length below 1.")
    if max(pair.prompt + pair.output for pair in found) > MAX_TOKENS:
        raise LengthsError(f"{name} has a request of more than {MAX_TOKENS} tokens.")
    return found
