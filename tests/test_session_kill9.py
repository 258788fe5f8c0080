"""Sessions of a real server whose engine, and then the whole of it, is killed with SIGKILL under load.

What was delivered stays said, what was not never was: sessions go on from their stored history, with blocks
that are found on disk and with the words of conversations that nothing happened to.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.session_client import Client, client_of
from benchmarks.session_results import Reply
from tests.support.server import Server, running_server
from tests.test_engine_restart import wait_for
from tests.test_kill9 import await_unlocked, metric

pytestmark = pytest.mark.timeout(300)
NAMES = ("Ada", "Bela", "Cleo")
STORY = " keeps the gate and writes down each tide, its hour and its height, and who came through. " * 6
QUESTIONS = ("What does the keeper write down?", "Who may pass?", "And at night?")
BLOCK_SIZE = 16
KEY, OTHER_KEY = "of-those-who-go-on", "of-those-who-begin-anew"  # tenants that share no block
MODEL = ("--device", "cpu", "--deterministic", "--max-model-len", "1024")
TIERS = ("--device-kv", "96MiB", "--host-kv", "48MiB", "--write-policy", "through", "--restore", "swap")
MODEL_NAME = "SmolLM2-135M-Instruct"
ENDLESS: dict[str, Any] = {
    "model": MODEL_NAME, "input": "Tell all.", "ignore_eos": True, "max_output_tokens": 500,
}  # fmt: skip
KEYS = ("--api-key", KEY, "--api-key", OTHER_KEY)


async def turns(client: Client, before: Sequence[Reply], question: str) -> list[Reply]:
    """The same of every session at once; the first turns tell their stories."""
    first = [{"input": name + STORY + question} for name in NAMES]
    bodies = [{"input": question} | previous(reply) for reply in before] or first
    common = {"model": MODEL_NAME, "temperature": 0, "max_output_tokens": 8}
    return await asyncio.gather(*(client.respond(lane, common | body) for lane, body in enumerate(bodies)))


def previous(reply: Reply) -> dict[str, Any]:
    return {"previous_response_id": reply.response_id}


def ask(server: Server, before: Sequence[Reply], question: str, key: str = KEY) -> list[Reply]:
    """One delivered turn of every session."""

    async def run() -> list[Reply]:
        async with client_of(server.port, key=key) as client:
            return await turns(client, before, question)

    replies = asyncio.run(run())
    assert [reply.error for reply in replies] == [""] * len(NAMES)
    return replies


def kill_under_load(
    server: Server, before: Sequence[Reply], pids: Sequence[int]
) -> tuple[list[Reply], float]:
    """What streams by HTTP and by WebSocket come to when these processes are killed, and when that was."""

    async def run() -> tuple[list[Reply], float]:
        begun = [asyncio.Event() for _ in range(2 * len(NAMES))]
        async with (
            client_of(server.port, key=KEY) as http,
            client_of(server.port, key=KEY, websocket=True) as sockets,
            asyncio.TaskGroup() as group,
        ):
            lanes = [(client, lane) for client in (http, sockets) for lane in range(len(NAMES))]
            streams = [
                group.create_task(client.respond(lane, ENDLESS | previous(before[lane]), event.set))
                for (client, lane), event in zip(lanes, begun, strict=True)
            ]
            for event in begun:
                await event.wait()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            killed_at = time.monotonic()
        return [stream.result() for stream in streams], killed_at

    return asyncio.run(run())


def await_saved(server: Server, replies: Sequence[Reply]) -> None:
    """Wait until all full blocks of these prompts are on disk; the first one is in all of them."""
    num_blocks = sum(reply.input_tokens // BLOCK_SIZE - 1 for reply in replies) + 1
    deadline = time.monotonic() + 60

    def blocks(state: str, tier: str) -> float:
        return metric(server, f'tidegate_kv_blocks{{state="{state}",tier="{tier}"}}')

    while blocks("cached", "disk") < num_blocks or blocks("copying", "device") or blocks("copying", "host"):
        assert time.monotonic() < deadline, "nothing more is written to disk"
        time.sleep(0.05)


def go_on(server: Server, before: Sequence[Reply], question: str) -> list[Reply]:
    """The next turn, for which nothing but the disk can have had anything."""
    replies = ask(server, before, question)
    for reply, last in zip(replies, before, strict=True):
        assert reply.cached_tokens >= last.input_tokens // BLOCK_SIZE * BLOCK_SIZE
    assert metric(server, 'tidegate_kv_hit_tokens_total{tier="disk"}') > 0
    assert server.wait_idle()["problems"] == []
    assert "Traceback" not in server.log
    return replies


def status_of(server: Server, response_id: str) -> str:
    status, body = server.get(f"/v1/responses/{response_id}", Authorization=f"Bearer {KEY}")
    assert status == 200, body
    return str(json.loads(body)["status"])


@pytest.mark.case("A12")
def test_sessions_go_on_after_their_engine_and_their_server_were_killed(tmp_path: Path) -> None:
    disk = ("--disk-kv", f"{tmp_path / 'kv'}:256MiB", "--state", str(tmp_path / "state"))
    with running_server(*MODEL, *KEYS, *TIERS, *disk) as server:
        first = ask(server, (), QUESTIONS[0])
        await_saved(server, first)
        broken, killed_at = kill_under_load(server, first, [server.engine_pid])
        for reply in broken:
            assert reply.last["type"] == "response.failed"
            assert reply.last["response"]["error"]["code"] == "server_error"
            assert reply.ended_at - killed_at < 2  # what was promised
        wait_for(server, "ok")
        lost = [reply.last["response"]["id"] for reply in broken]
        assert {status_of(server, response_id) for response_id in lost} == {"failed"}
        second = go_on(server, first, QUESTIONS[1])

        await_saved(server, second)
        broken, _ = kill_under_load(server, second, [server.process.pid, server.engine_pid])
        assert all(reply.error for reply in broken)
        server.process.wait(30)
    await_unlocked(tmp_path / "kv" / "lock")
    with running_server(*MODEL, *KEYS, *TIERS, *disk) as server:
        kept = {status_of(server, reply.response_id) for reply in (*first, *second)}
        assert kept <= {"completed", "incomplete"}
        assert {status_of(server, response_id) for response_id in lost} == {"failed"}
        third = go_on(server, second, QUESTIONS[2])
        theirs: list[Reply] = []  # who have nothing of all that, and to whom nothing has happened
        for question, ours in zip(QUESTIONS, (first, second, third), strict=True):
            theirs = ask(server, theirs, question, OTHER_KEY)
            assert [reply.text for reply in theirs] == [reply.text for reply in ours]
