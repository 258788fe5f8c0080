"""One live server, with the real model, for the suites of all clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

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


@pytest.fixture(scope="package")
def unsupported(server: Server) -> dict[str, str]:
    """Features that this server refuses as unsupported, with the parameter it names."""
    return {name: param for name, body in PROBES.items() if (param := _refused(server, body)) is not None}


@pytest.fixture
def needs(unsupported: dict[str, str]) -> Callable[[str], None]:
    """Skips a test whose feature the server does not have yet."""

    def check(feature: str) -> None:
        if feature in unsupported:
            pytest.skip(f"the server does not support '{unsupported[feature]}'")

    return check


_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
PROBES: dict[str, dict[str, Any]] = {
    "response_format": {**_CHAT, "response_format": {"type": "json_object"}},
    "structured_outputs": {**_CHAT, "structured_outputs": {"choice": ["yes", "no"]}},
    "tools": {**_CHAT, "tools": [_TOOL]},
    "service_tier": {**_CHAT, "service_tier": "flex"},
    "store": {**_CHAT, "store": True},
    "echo": {"prompt": "Hi", "echo": True, "max_tokens": 1},
    "prompt_logprobs": {"prompt": "Hi", "prompt_logprobs": 0, "max_tokens": 1},
    "skip_special_tokens": {"prompt": "Hi", "skip_special_tokens": False, "max_tokens": 1},
    "continuous_usage_stats": {
        "prompt": "Hi", "max_tokens": 1, "stream": True, "stream_options": {"continuous_usage_stats": True},
    },
}  # fmt: skip


def _refused(server: Server, body: dict[str, Any]) -> str | None:
    """The parameter that is refused as unsupported, if one is."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    status, answer = server.post(path, body, Authorization=f"Bearer {KEY}")
    if status != 400:
        return None
    error = json.loads(answer)["error"]
    return error["param"] if error["code"] == "unsupported_parameter" else None
