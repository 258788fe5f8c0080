"""One live server, with the real model, for the suites of all clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Server, running_server

KEY = "sk-clients"
MODEL = "SmolLM2-135M-Instruct"
PLACES = 8  # answers in the house: one more is refused


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    limits = ("--max-num-seqs", str(PLACES), "--max-waiting", "0", "--max-model-len", "2048")
    with running_server("--api-key", KEY, "--device-kv", "256MiB", *limits) as server:
        yield server
        report = server.wait_idle()
        assert report["problems"] == []
        assert report["stats"]["blocks_in_use"] == 0
        assert server.stop() == 0, server.log


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Server) -> Iterator[None]:
    """After every test the engine is idle and the server well."""
    yield
    assert server.wait_idle()["stats"]["blocks_in_use"] == 0
    assert server.get("/health")[0] == 200
