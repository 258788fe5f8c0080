"""Prometheus metrics of one gateway, in a registry of its own.

Runs on the event loop. The engine's gauges and running totals are read from ``engine.stats`` when
somebody scrapes; histograms are fed by every step report and by the streams. Nothing here is
global, so two gateways in one process (tests) never share a number.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine.client import Engine
from engine.messages import StepReport
from engine.stats import KV_TRANSFER_BUCKETS, TierStats, TransferStats
from gateway.histogram import TokenHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CANCELLED = "cancelled"
_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)
_STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class RequestRecord:
    """Times and outcome of one generation request."""

    __slots__ = ("_last", "_metrics", "_started", "outcome", "ttft_s")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started = time.perf_counter()
        self._last: dict[int, float] = {}
        self.ttft_s: float | None = None  # once there was a token
        self.outcome = CANCELLED  # what leaves the scope without saying otherwise

    def on_tokens(self, index: int, count: int) -> None:
        """Tokens of one of the request's sequences reached the gateway."""
        now = time.perf_counter()
        if not self._last:
            self.ttft_s = now - self._started
            self._metrics.ttft_seconds.observe(self.ttft_s)
        before, self._last[index] = self._last.get(index), now
        if before is not None:
            self._metrics.inter_token_seconds.observe((now - before) / count, count)


class Metrics:
    """All series; ``render`` gives the text that Prometheus reads."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tidegate_requests", "Generation requests by how they ended.", ["outcome"], registry=self.registry
        )
        self.error_answers = Counter(
            "tidegate_error_answers",
            "Answers with an error status, by cause.",
            ["cause"],
            registry=self.registry,
        )
        self.websockets = Gauge("tidegate_websockets", "WebSockets among them.", registry=self.registry)
        self.connections = Gauge(
            "tidegate_connections", "Connections that clients have open.", registry=self.registry
        )
        self.ttft_seconds = Histogram(
            "tidegate_ttft_seconds",
            "From the arrival of a request to its first token.",
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self.inter_token_seconds = TokenHistogram(
            "tidegate_inter_token_seconds", "Between two tokens of one request.", _TOKEN_BUCKETS
        )
        self.registry.register(self.inter_token_seconds)
        self.step_seconds = Histogram(
            "tidegate_step_seconds",
            "Time of an engine step by stage.",
            ["stage"],
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self.limited = Counter(
            "tidegate_requests_limited",
            "Requests that a tenant's own limit refused.",
            ["tenant", "limit"],
            registry=self.registry,
        )
        self.tenant_tokens = Counter(
            "tidegate_tenant_tokens",
            "Tokens of a tenant of the keys file.",
            ["tenant", "kind"],
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(engine))
        engine.add_step_listener(self._on_step)

    @contextmanager
    def request(self) -> Iterator[RequestRecord]:
        """Scope of one generation request; counts it by ``outcome`` at the end."""
        record = RequestRecord(self)
        try:
            yield record
        finally:
            self.requests.labels(record.outcome).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _on_step(self, report: StepReport) -> None:
        for stage, seconds in report.stage_seconds.items():
            self.step_seconds.labels(stage).observe(seconds)


class _EngineCollector(Collector):
    """The engine's own numbers, as of its last step. With another engine the totals begin anew."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats
        yield _total(
            "tidegate_engine_restarts",
            "Times that the engine died and another took its place.",
            self._engine.num_restarts,
        )
        yield _gauge("tidegate_requests_running", "Requests in the batch.", stats.num_running)
        yield _gauge("tidegate_requests_waiting", "Requests that wait for a place.", stats.num_waiting)
        yield _gauge("tidegate_requests_swapped", "Requests with their KV in host slots.", stats.num_swapped)
        yield _gauge(
            "tidegate_requests_restoring", "Requests whose KV is on its way back.", stats.num_restoring
        )
        yield from _tiers(stats.tiers)
        yield from _transfers(stats.transfers)
        yield _preemptions(stats.preemptions)
        yield _total(
            "tidegate_recomputed_tokens",
            "Tokens computed although their KV had existed.",
            stats.recomputed_tokens_total,
        )
        yield _total(
            "tidegate_kv_block_copies",
            "Blocks copied on the device because sequences that shared them parted.",
            stats.block_copies_total,
        )
        yield _total(
            "tidegate_stalls", "Times that all there was to do waited for copies.", stats.stalls_total
        )
        yield _total("tidegate_restores", "Sequences whose KV was loaded back.", stats.restores_total)
        yield _total("tidegate_restore_seconds", "Time that took, in all.", stats.restore_s_total)
        yield _total(
            "tidegate_restore_predicted_seconds",
            "Time that it was predicted to take.",
            stats.restore_predicted_s_total,
        )
        yield _total("tidegate_generated_tokens", "Tokens generated.", stats.generated_tokens_total)
        yield _total("tidegate_prompt_tokens", "Prompt tokens taken in.", stats.prompt_tokens_total)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _tiers(tiers: dict[str, TierStats]) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("tidegate_kv_blocks", "KV blocks of a tier.", labels=["tier", "state"])
    kept = GaugeMetricFamily(
        "tidegate_kv_blocks_kept", "Cached KV blocks that go after all that nobody keeps.", labels=["tier"]
    )
    hits = CounterMetricFamily(
        "tidegate_kv_hit_tokens", "Prompt tokens that were not computed, by where they were.", labels=["tier"]
    )
    evictions = CounterMetricFamily(
        "tidegate_evictions", "Cached blocks given up for room.", labels=["tier", "policy"]
    )
    for name, tier in tiers.items():
        blocks.add_metric([name, "free"], tier.blocks_free)
        blocks.add_metric([name, "cached"], tier.blocks_cached)
        blocks.add_metric([name, "in_use"], tier.blocks_in_use)
        blocks.add_metric([name, "copying"], tier.blocks_copying)
        kept.add_metric([name], tier.blocks_kept)
        hits.add_metric([name], tier.hit_tokens_total)
        evictions.add_metric([name, tier.eviction], tier.evictions_total)
    yield from (blocks, kept, hits, evictions)


def _transfers(transfers: dict[str, TransferStats]) -> Iterator[Metric]:
    """By kind: swap_out, swap_in (device and host), demote, promote (host and disk)."""
    num_bytes = _by_kind("tidegate_kv_transfer_bytes", "Bytes of blocks moved between tiers.")
    queued = _by_kind("tidegate_kv_transfer_queue_seconds", "Time that moves waited for their copy to begin.")
    cpu = _by_kind("tidegate_kv_transfer_cpu_seconds", "Processor time of copy threads.")
    failures = _by_kind("tidegate_kv_transfer_failures", "Moves that failed.")
    seconds = HistogramMetricFamily(
        "tidegate_kv_transfer_seconds", "Time to copy one block.", labels=["kind"]
    )
    for kind, stats in transfers.items():
        num_bytes.add_metric([kind], stats.num_bytes)
        queued.add_metric([kind], stats.queue_s)
        cpu.add_metric([kind], stats.cpu_s)
        failures.add_metric([kind], stats.num_failed)
        counts = [str(bound) for bound in KV_TRANSFER_BUCKETS] + ["+Inf"]
        seconds.add_metric(
            [kind], list(zip(counts, accumulate(stats.buckets), strict=True)), sum_value=stats.copy_s
        )
    num_corrupt = sum(stats.num_corrupt for stats in transfers.values())
    yield from (num_bytes, seconds, queued, cpu, failures)
    yield _total("tidegate_kv_checksum_failures", "Blocks that were not what they should be.", num_corrupt)


def _preemptions(preemptions: dict[str, int]) -> Metric:
    family = CounterMetricFamily(
        "tidegate_preemptions", "Preempted sequences, by kind and cause.", labels=["kind", "cause"]
    )
    for kind in ("swap", "recompute"):
        for cause in ("pressure", "share", "slow_reader"):
            family.add_metric([kind, cause], preemptions.get(f"{kind}/{cause}", 0))
    return family


def _by_kind(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=["kind"])
