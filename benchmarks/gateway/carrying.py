"""Tokens that one core carries: processor time of the gateway for each, beside that of the floor.

Rounds of both take turns, with as many streams, at the same pace, with events of the same size; the ratio is
of neighbours in time. A token is an event, as long as nobody lags: what came is checked on a few streams,
whose words are counted when all is over.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.gateway.requests import Kind, Opening, bare, chat, response
from benchmarks.gateway.running import Measured, Pace
from benchmarks.gateway.sink import Arrival, Count, Sink, Task, sink
from benchmarks.gateway.usage import cpu_s
from benchmarks.report import interval_95

OPENINGS: dict[Kind, Callable[[int], Opening]] = {"sse": chat, "ws": response}
_WORDS = re.compile(rb'"(?:content|delta)":"((?: [A-Za-z]+)+)"')
_EVEN = 1.05  # tokens an event, at most, where nobody lags: they start together
_WARM_UP_S = 0.5
_SPARE_S = 1.5  # that a stream goes on after it was measured
_FRAMING_BYTES = {"sse": 6, "ws": 0}  # of a chunk, which the floor adds by itself


class LostError(RuntimeError):
    """Not all that was generated came."""


@dataclass(frozen=True, slots=True)
class Window:
    """Of one server, for a few seconds. ``us_per_token``: processor time of its process by events."""

    tokens_per_s: float
    us_per_token: float
    core_share: float
    bytes_per_event: float


@dataclass(frozen=True, slots=True)
class Carried:
    """Medians over the rounds. ``ratio``: to the floor, with an interval of 95 %.

    Rounds in which the gateway lagged, so that tokens came several in an event, are left out and counted;
    if it lagged in all, the figures are of those.
    """

    kind: Kind
    num_streams: int
    us_per_token: float
    floor_us: float
    ratio: float
    ratio_low: float
    ratio_high: float
    tokens_per_s: float
    tokens_per_s_of_a_core: float
    tokens_per_event: float
    num_lagging: int


def measure(
    kind: Kind,
    server: Measured,
    bare_server: Measured,
    *,
    num_streams: int,
    pace: Pace,
    rounds: int,
    length_s: float,
) -> Carried:
    """Raises LostError."""
    lasts_s = _warm_up_s(length_s) + length_s + min(_SPARE_S, 2 * length_s)
    num_tokens = round(pace.tokens_per_s * lasts_s)
    found: list[tuple[Window, Window, float]] = []
    for _ in range(rounds):
        with sink(Task(server.port, OPENINGS[kind](num_tokens), num_streams, num_streams, 64)) as reader:
            ours = watch(server, reader, length_s)
            per_event = _tokens_per_event(_read_to_the_end(reader), num_tokens)
        size = round(ours.bytes_per_event) - _FRAMING_BYTES[kind]
        opening = bare(kind, num_tokens, size)
        with sink(Task(bare_server.port, opening, num_streams, num_streams)) as reader:
            found.append((ours, watch(bare_server, reader, length_s), per_event))
    return _summary(kind, num_streams, found)


def _summary(kind: Kind, num_streams: int, found: Sequence[tuple[Window, Window, float]]) -> Carried:
    even = [one for one in found if one[2] <= _EVEN] or found
    pairs = [(ours, theirs) for ours, theirs, _ in even]
    ratios = [ours.us_per_token / theirs.us_per_token for ours, theirs in pairs]
    low, high = interval_95(ratios)
    us_per_token = statistics.median(ours.us_per_token for ours, _ in pairs)
    return Carried(
        kind, num_streams, us_per_token, statistics.median(theirs.us_per_token for _, theirs in pairs),
        statistics.median(ratios), low, high,
        statistics.median(ours.tokens_per_s for ours, _ in pairs), 1e6 / us_per_token,
        statistics.median(per_event for _, _, per_event in even),
        sum(per_event > _EVEN for _, _, per_event in found),
    )  # fmt: skip


def watch(server: Measured, reader: Sink, length_s: float) -> Window:
    """All streams have begun; they go on for longer than that."""
    time.sleep(_warm_up_s(length_s))
    before, used_s = reader.count(), cpu_s(server.pid)
    time.sleep(length_s)
    after, used_s = reader.count(), cpu_s(server.pid) - used_s
    num_events, passed_s = after.num_events - before.num_events, after.at_s - before.at_s
    return Window(
        num_events / passed_s,
        1e6 * used_s / num_events,
        used_s / passed_s,
        (after.num_bytes - before.num_bytes) / num_events,
    )


def _warm_up_s(length_s: float) -> float:
    return min(_WARM_UP_S, length_s)


def _read_to_the_end(reader: Sink) -> Count:
    """Until nothing has come for a while."""
    last = reader.count()
    while True:
        time.sleep(0.25)
        count = reader.count()
        if count.num_events == last.num_events:
            return reader.finish()
        last = count


def _tokens_per_event(count: Count, num_tokens: int) -> float:
    """On the streams that were watched. Raises LostError if not all of their words came."""
    found = [_WORDS.findall(_joined(arrivals)) for arrivals in count.watched]
    for stretches in found:
        num_words = sum(stretch.count(b" ") for stretch in stretches)
        if num_words != num_tokens:
            raise LostError(f"{num_words} of {num_tokens} tokens came on a stream")
    return num_tokens * len(found) / sum(map(len, found))


def _joined(arrivals: list[Arrival]) -> bytes:
    """Whatever framing there is stands between events, not in them."""
    return b"".join(arrival.data for arrival in arrivals)
