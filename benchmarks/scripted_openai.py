"""A server of OpenAI's APIs that answers as it is told to, in a process of its own, and notes what it did.

Its tokens are words: a text of five words in a chat whose template costs ten is a prompt of fifteen tokens.
All its times are of ``time.perf_counter``, which on Linux is one clock for all processes.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from benchmarks.child import child

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is answered: in pieces of ``tokens_each`` tokens, for each choice its own."""

    first_s: float = 0.0  # from when its turn has come to the first piece
    gap_s: float = 0.0  # between pieces
    gaps_s: list[float] = []  # the same one by one, over and over; instead of gap_s
    tokens_each: int = 1
    num_tokens: int | None = None  # None: as many as asked for
    end_s: float = 0.0  # from the last piece to the end
    word: str = "so"
    status: int = 200  # another: a refusal
    code: str = "rate_limit_exceeded"  # of a refusal, or of an error in the stream
    cut_after: int | None = None  # pieces; then the connection is closed
    reset_after: int | None = None  # pieces; then it is reset
    stall_after: int | None = None  # pieces; then nothing more comes
    fail_after: int | None = None  # pieces; then an error is told in the stream
    raw: str = ""  # answered as it is, whatever it is, and closed
    tells_usage: bool = True
    stays_open: bool = False  # the HTTP response does not end with the answer
    end_late_s: float = 0.0  # from the answer's end to that of the HTTP response
    together: bool = False  # all pieces and the end in one write


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The requests are answered by ``replies`` in the order in which they come, over and over."""

    replies: tuple[Reply, ...] = (Reply(),)
    max_running: int | None = None  # others wait for their turn
    refuses: list[str] = []  # fields of a body that cost a 400
    ignores: list[str] = []  # fields that change nothing
    kind: Literal["tidegate", "vllm", "llamacpp", "other"] = "other"
    model: str = "scripted"
    window: int = 4096
    has_tokenizer: bool = True
    two_tokens: list[str] = []  # words that are two tokens each
    first_cost: int = 10  # of a chat's template, around a first turn
    later_cost: int = 6
    key: str = ""  # that is asked for
    drops_reused_s: float | None = None  # a second request on a connection closes it, so much later
    close_code: int = 0  # that is told on a WebSocket which is closed so; 0: none is
    stops_after: int | None = None  # tokens, at which its model ends an answer unless told to go on
    send_buffer: int | None = None  # bytes on their way to a client, before writes wait
    metrics: str = ""  # what /metrics says

    def length_of(self, asked: dict[str, Any]) -> int:
        """Tokens of an answer."""
        most = next((int(asked[name]) for name in _LENGTHS if name in asked), 16)
        if self.stops_after is None or asked.get("ignore_eos"):
            return most
        return min(most, max(self.stops_after, int(asked.get("min_tokens", 0))))


class Record(msgspec.Struct, kw_only=True):
    """What became of a request. ``turn_at``: when it was no longer kept waiting by others."""

    number: int
    path: str
    prompt: str  # the text that is new in it
    body: dict[str, object]
    connection: int
    arrived_at: float
    turn_at: float | None = None
    written_at: list[list[float]] = []  # of each choice, each piece: just before it is written
    ended_at: float | None = None
    was_left: bool = False  # the client went before the end


@dataclass(frozen=True, slots=True)
class ScriptedServer:
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def records(self) -> list[Record]:
        """Of all requests so far but those of a survey's pages, in the order in which they came."""
        with urllib.request.urlopen(f"{self.url}/records", timeout=30) as answer:
            return msgspec.json.decode(answer.read(), type=list[Record])

    def rewrite(self, script: Script) -> None:
        """Another script from now on, with no records and the first reply next."""
        body = msgspec.json.encode(script)
        with urllib.request.urlopen(f"{self.url}/script", data=body, timeout=30):
            pass


@contextlib.contextmanager
def scripted_openai(script: Script | None = None) -> Iterator[ScriptedServer]:
    """Serve until the scope ends."""
    line = msgspec.json.encode(script or Script())
    with child("benchmarks.scripted_openai_process", (), line, patience_s=10) as process:
        yield ScriptedServer(process.port, process.pid)
