"""What servers publish about themselves, by one set of names whatever the server is called. Pure.

Reads the text format of Prometheus. A sample that has no name of ours is passed over; several that have the
same one, such as those of a server's engines, are added up, but of shares the largest counts. A gauge stays
as it is. Of a counter what it grew by since the first page is kept; one that fell has begun anew with its
server's engine, and goes on from there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadtest.results import Series

Unit = Literal["", "bytes", "tokens", "blocks", "requests", "share"]
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)


@dataclass(frozen=True, slots=True)
class _Measure:
    """``name`` is ours, filled in with a sample's labels. If there are ``states``, no other samples count."""

    name: str
    unit: Unit
    is_counter: bool = False
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What the server said, and when it came, by the clock of the run."""

    at_s: float
    lines: Sequence[bytes]


def _total(name: str, unit: Unit) -> _Measure:
    return _Measure(name, unit, is_counter=True)


_RUNNING, _WAITING = _Measure("running", "requests"), _Measure("waiting", "requests")
_SWAPPED = _Measure("swapped", "requests")
_KV_SHARE = _Measure("kv_share", "share")
_PROMPT, _GENERATED = _total("prompt_tokens", "tokens"), _total("generated_tokens", "tokens")
_HIT = _total("hit_tokens device", "tokens")
MEASURES: Mapping[str, Mapping[str, Sequence[_Measure]]] = {
    "tidegate": {
        "tidegate_requests_running": [_RUNNING],
        "tidegate_requests_waiting": [_WAITING],
        "tidegate_requests_swapped": [_SWAPPED],
        "tidegate_requests_restoring": [_Measure("restoring", "requests")],
        "tidegate_kv_blocks": [
            _Measure("kv_blocks {tier}", "blocks", states=("in_use", "copying")),
            _Measure("kv_cached {tier}", "blocks", states=("cached",)),
            _Measure("kv_room {tier}", "blocks", states=("in_use", "copying", "cached", "free")),
        ],
        "tidegate_kv_transfer_bytes_total": [_total("bytes {kind}", "bytes")],
        "tidegate_kv_hit_tokens_total": [_total("hit_tokens {tier}", "tokens")],
        "tidegate_recomputed_tokens_total": [_total("recomputed_tokens", "tokens")],
        "tidegate_preemptions_total": [_total("preemptions {kind}", "")],
        "tidegate_evictions_total": [_total("evictions {tier}", "blocks")],
        "tidegate_prompt_tokens_total": [_PROMPT],
        "tidegate_generated_tokens_total": [_GENERATED],
    },
    "vllm": {
        "vllm:num_requests_running": [_RUNNING],
        "vllm:num_requests_waiting": [_WAITING],
        "vllm:num_requests_swapped": [_SWAPPED],
        "vllm:kv_cache_usage_perc": [_KV_SHARE],
        "vllm:gpu_cache_usage_perc": [_KV_SHARE],
        "vllm:prefix_cache_hits_total": [_HIT],
        "vllm:gpu_prefix_cache_hits_total": [_HIT],
        "vllm:num_preemptions_total": [_total("preemptions recompute", "")],
        "vllm:prompt_tokens_total": [_PROMPT],
        "vllm:generation_tokens_total": [_GENERATED],
    },
    "llama.cpp": {
        "llamacpp:requests_processing": [_RUNNING],
        "llamacpp:requests_deferred": [_WAITING],
        "llamacpp:kv_cache_usage_ratio": [_KV_SHARE],
        "llamacpp:prompt_tokens_total": [_PROMPT],
        "llamacpp:tokens_predicted_total": [_GENERATED],
    },
}


def wanted_lines(kind: str, page: bytes) -> list[bytes]:
    """Those that may hold a measure of ours. Fast: it runs while the clock does."""
    starts = tuple(name.encode() for name in MEASURES.get(kind, {}))
    return [line for line in page.splitlines() if line.startswith(starts)] if starts else []


def series(kind: str, pages: Sequence[Page]) -> list[Series]:
    """All that the pages say, by name."""
    growing: dict[str, _Growing] = {}
    for page in pages:
        for name, (measure, value, sources) in _read(kind, page.lines).items():
            growing.setdefault(name, _Growing(name, measure)).take(page.at_s, value, sources)
    return [growing[name].finish() for name in sorted(growing)]


@dataclass(slots=True)
class _Growing:
    """A series as its pages come."""

    name: str
    measure: _Measure
    sources: list[str] = field(default_factory=list)
    at_ms: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    last: float | None = None

    def take(self, at_s: float, value: float, sources: Sequence[str]) -> None:
        self.sources += [source for source in sources if source not in self.sources]
        self.at_ms.append(round(at_s * 1e3, 3))
        self.values.append(self._grown_to(value) if self.measure.is_counter else value)
        self.last = value

    def finish(self) -> Series:
        measure = self.measure
        return Series(
            self.name, " + ".join(self.sources), measure.unit, measure.is_counter, self.at_ms, self.values
        )

    def _grown_to(self, value: float) -> float:
        if self.last is None:
            return 0.0
        return self.values[-1] + (value - self.last if value >= self.last else value)


def _read(kind: str, lines: Iterable[bytes]) -> dict[str, tuple[_Measure, float, list[str]]]:
    """Of one page, by our names: its samples together, and what they are called there."""
    found: dict[str, tuple[_Measure, float, list[str]]] = {}
    for source, name, labels, value in _samples(lines):
        for measure in MEASURES[kind].get(name, ()):
            if measure.states and labels.get("state") not in measure.states:
                continue
            ours = measure.name.format_map(_Labels(labels))
            _, before, sources = found.get(ours, (measure, 0.0, []))
            together = max(before, value) if measure.unit == "share" else before + value
            found[ours] = (measure, together, [*sources, source])
    return found


def _samples(lines: Iterable[bytes]) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Of each line that is a sample: all of its name, the name alone, labels, value."""
    for line in lines:
        parsed = _SAMPLE.fullmatch(line.decode(errors="replace"))
        if parsed is None:
            continue
        name, labels, number = parsed.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if math.isfinite(value):
            source = name if labels is None else f"{name}{{{labels}}}"
            yield source, name, dict(_LABEL.findall(labels or "")), value


class _Labels(dict[str, str]):
    """A label that a server leaves out is a question mark in our name."""

    def __missing__(self, key: str) -> str:
        return "?"
