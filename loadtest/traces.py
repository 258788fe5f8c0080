"""Traces of real servers: when requests came, how long they were, which prompts began alike.

Pure, but for reading a file. A trace has no text: ``block_ids`` name pieces of a prompt, each together with
all that comes before it, so two prompts that share their first k ids share that many pieces.

Read as they are: Mooncake's JSON lines, the CSV files of BurstGPT and of Azure (2023 and 2024), and our own
CSV with the columns input_length and output_length, and arrival_ms and session where it has them.
"""

from __future__ import annotations

import calendar
import csv
import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import msgspec

_FILES = {
    "mooncake-conversation": "mooncake_conversation.jsonl.gz",
    "mooncake-synthetic": "mooncake_synthetic.jsonl.gz",
    "azure-conv": "azure2023_conv.csv.gz",
    "azure-code": "azure2023_code.csv.gz",
    "sharegpt-multiturn": "sharegpt_multiturn_300.jsonl.gz",
    "arxiv": "arxiv_summarization.csv.gz",
    "sharegpt": "sharegpt.csv.gz",
    "alpaca": "alpaca.csv.gz",
}
BUILT_IN = tuple(_FILES)
MOST_TOKENS = 10_000_000  # of a prompt or an answer
_BLOCK_LENGTHS = (512, 16, 256, 128, 64, 32, 1024, 2048, 8)  # the likeliest first


class TraceError(ValueError):
    """A trace cannot be used. The message is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. ``at_s`` counts from the first row; rows of a ``session`` are turns of a conversation."""

    at_s: float | None
    input_len: int  # tokens of the whole prompt, with the history of its session
    output_len: int
    block_ids: tuple[int, ...] = ()  # of its prompt from the start on; the last block may be a partial one
    block_len: int = 0  # tokens
    session: str | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """Rows by time, where there are times; then every row has one."""

    name: str
    sha256: str  # of the file, unpacked
    rows: tuple[TraceRow, ...]
    unanswered: int = 0  # rows without an output token, which are left out: requests that failed then

    def __post_init__(self) -> None:
        assert self.rows

    @property
    def has_times(self) -> bool:
        return self.rows[0].at_s is not None

    @property
    def has_blocks(self) -> bool:
        return any(row.block_ids for row in self.rows)

    @property
    def has_sessions(self) -> bool:
        return any(row.session is not None for row in self.rows)

    @property
    def is_ordered(self) -> bool:
        """Whether its rows belong together; else they are no more than lengths to draw from."""
        return self.has_times or self.has_blocks or self.has_sessions


def read_trace(name_or_path: str | Path) -> Trace:
    """One of ``BUILT_IN``, or a file, gzipped or not. Raises TraceError."""
    name = str(name_or_path)
    if name in _FILES:
        packed = resources.files("loadtest").joinpath("data", _FILES[name]).read_bytes()
        return parse_trace(gzip.decompress(packed), name)
    try:
        data = Path(name).read_bytes()
        is_packed = name.endswith(".gz") or data.startswith(b"\x1f\x8b")
        return parse_trace(gzip.decompress(data) if is_packed else data, name)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TraceError(f"{name} is not a text file, gzipped or not.") from None
    except OSError as error:
        hint = "" if "/" in name else f" Traces that come with tideload: {', '.join(BUILT_IN)}."
        raise TraceError(f"{name} cannot be read: {error.strerror or error}.{hint}") from None


def parse_trace(data: bytes, name: str) -> Trace:
    """``data`` is JSON lines if it starts with a brace, else CSV. Raises TraceError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError(f"{name} is not a text file, gzipped or not.") from None
    is_json = text.lstrip().startswith("{")
    try:
        rows = list(_json_rows(text, name) if is_json else _csv_rows(text, name))
    except csv.Error as error:
        raise TraceError(f"{name} is no CSV file: {error}.") from None
    if any(row.input_len < 1 or row.output_len < 0 for row in rows):
        raise TraceError(f"{name} has a length below 1.")
    if any(max(row.input_len, row.output_len) > MOST_TOKENS for row in rows):
        raise TraceError(f"{name} has a length above {MOST_TOKENS:,}.")
    answered = [row for row in rows if row.output_len]
    if not answered:
        raise TraceError(f"{name} has no rows.")
    return Trace(name, hashlib.sha256(data).hexdigest(), _by_time(answered, name), len(rows) - len(answered))


def _by_time(rows: Sequence[TraceRow], name: str) -> tuple[TraceRow, ...]:
    times = [row.at_s for row in rows if row.at_s is not None]
    if not times:
        return tuple(rows)
    if len(times) < len(rows) or not all(map(math.isfinite, times)):
        raise TraceError(f"{name} has rows without a time, and others with one.")
    start_s = min(times)
    shifted = (replace(row, at_s=at_s - start_s) for row, at_s in zip(rows, times, strict=True))
    return tuple(sorted(shifted, key=lambda row: row.at_s or 0.0))


# ---- JSON lines ------------------------------------------------------------------------------------


class _Line(msgspec.Struct):
    """As Mooncake has it. ``session_id`` is ours to read: others add it."""

    input_length: int
    output_length: int
    timestamp: float | None = None  # ms
    hash_ids: tuple[int, ...] = ()
    session_id: str | int | None = None


def _json_rows(text: str, name: str) -> list[TraceRow]:
    decoder = msgspec.json.Decoder(_Line)
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                lines.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise TraceError(f"{name}, line {number}, is no row of a trace: {error}.") from None
    block_len = _block_len(lines, name) if any(line.hash_ids for line in lines) else 0
    return [
        TraceRow(
            None if line.timestamp is None else line.timestamp / 1000,
            line.input_length,
            line.output_length,
            line.hash_ids,
            block_len,
            None if line.session_id is None else str(line.session_id),
        )
        for line in lines
    ]


def _block_len(lines: Sequence[_Line], name: str) -> int:
    """Tokens a block: every row has an id for each block, or for each full one."""
    counts = [(line.input_length, len(line.hash_ids)) for line in lines]
    for block_len in _BLOCK_LENGTHS:
        if all(ids == -(-tokens // block_len) for tokens, ids in counts):
            return block_len
        if all(ids == tokens // block_len for tokens, ids in counts):
            return block_len
    raise TraceError(
        f"{name} must have an id in hash_ids for each block of so many tokens, the same in all rows."
    )


# ---- CSV -------------------------------------------------------------------------------------------


def _milliseconds(text: str) -> float:
    return float(text) / 1000


_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d(?:\.\d+)?)(?:Z|\+00:00)?")


def _date(text: str) -> float:
    """Seconds since 1970. Azure's times have seven digits after the point."""
    found = _DATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute = map(int, found.groups()[:5])
    return calendar.timegm((year, month, day, hour, minute, 0)) + float(found[6])


@dataclass(frozen=True, slots=True)
class _Columns:
    """The names in a kind of header. Those of time and session need not be there."""

    input_len: str
    output_len: str
    at: str
    read_time: Callable[[str], float]
    session: str


_HEADERS = (
    _Columns("input_length", "output_length", "arrival_ms", _milliseconds, "session"),
    _Columns("Request tokens", "Response tokens", "Timestamp", float, "Session ID"),  # BurstGPT
    _Columns("ContextTokens", "GeneratedTokens", "TIMESTAMP", _date, ""),  # Azure
)


def _csv_rows(text: str, name: str) -> Iterator[TraceRow]:
    lines = csv.reader(text.splitlines())
    header = [column.strip() for column in next(lines, [])]
    columns = next((c for c in _HEADERS if {c.input_len, c.output_len} <= set(header)), None)
    if columns is None:
        raise TraceError(
            f"{name} must have the columns input_length and output_length, or those of BurstGPT or Azure."
        )
    inputs, outputs = header.index(columns.input_len), header.index(columns.output_len)
    at = header.index(columns.at) if columns.at in header else None
    session = header.index(columns.session) if columns.session in header else None
    for row in lines:
        if not row:
            continue
        try:
            yield TraceRow(
                None if at is None else columns.read_time(row[at]),
                int(row[inputs]),
                int(row[outputs]),
                session=None if session is None else row[session].strip() or None,
            )
        except (ValueError, IndexError):
            raise TraceError(
                f"{name}, line {lines.line_num}, must have whole numbers as lengths, and a time."
            ) from None
