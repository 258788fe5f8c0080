"""Reading a server's measures beside a run, from a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from loadtest.clock import MonotonicClock
from loadtest.drivers.target import Target
from loadtest.measuring import scrape
from loadtest.measuring.scrape import Scraper, metrics_url


class Metrics:
    """Counts how often it was read, and with which key."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.keys: list[str | None] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        return web.Response(text=f"tidegate_requests_running {len(self.keys)}\n", status=self.status)


@asynccontextmanager
async def serving(metrics: Metrics) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", metrics.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def page_of(base_url: str) -> str:
    return metrics_url(Target(base_url).address)


async def watch_until(scraper: Scraper, metrics: Metrics, num_reads: int) -> None:
    watching = asyncio.create_task(scraper.watch())
    async with asyncio.timeout(30):
        while len(metrics.keys) < num_reads:
            await asyncio.sleep(0.001)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


@pytest.mark.parametrize("base_url", ["http://x:1", "http://x:1/", "http://x:1/v1", "http://x:1/v1/"])
def test_the_page_is_beside_the_api(base_url: str) -> None:
    assert page_of(base_url) == "http://x:1/metrics"


async def test_pages_are_read_until_the_run_is_over_and_once_more_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrape, "EVERY_S", 0.01)
    metrics = Metrics()
    async with serving(metrics) as base_url:
        headers = {"Authorization": "Bearer key"}
        scraper = Scraper(page_of(base_url), headers, MonotonicClock(), "tidegate")
        await watch_until(scraper, metrics, 3)
    (running,) = scraper.series()
    assert running.values[-1] == len(metrics.keys) >= 4
    assert running.at_ms == sorted(running.at_ms)
    assert set(metrics.keys) == {"Bearer key"}
    assert scraper.problem == ""


async def test_a_server_without_the_page_has_a_problem_and_no_measures() -> None:
    metrics = Metrics(status=501)
    async with serving(metrics) as base_url:
        scraper = Scraper(page_of(base_url), {}, MonotonicClock(), "llama.cpp")
        await watch_until(scraper, metrics, 1)
    assert scraper.series() == []
    assert scraper.problem == f"{page_of(base_url)} could not be read: HTTP 501."


async def test_nobody_at_the_address_is_a_problem_and_no_error() -> None:
    async with serving(Metrics()) as base_url:
        pass
    scraper = Scraper(page_of(base_url), {}, MonotonicClock(), "tidegate")
    watching = asyncio.create_task(scraper.watch())
    async with asyncio.timeout(30):
        while not scraper.problem:
            await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.wait([watching])
    assert scraper.series() == []


async def test_a_server_that_is_not_known_is_not_asked() -> None:
    metrics = Metrics()
    async with serving(metrics) as base_url:
        await Scraper(page_of(base_url), {}, MonotonicClock(), "unknown").watch()
    assert metrics.keys == []
