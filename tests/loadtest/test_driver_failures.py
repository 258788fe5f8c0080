"""What drivers say of requests that fail, and of servers that are none."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from benchmarks.scripted_openai import Reply, Script, ScriptedServer, scripted_openai
from loadtest.drivers.apis import Options
from loadtest.drivers.base import ServerUnreachableError
from loadtest.drivers.target import ApiName, TransportName
from loadtest.timeline import Outcome
from tests.support.drive import WAYS, Drive

RAW = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: 2\r\n\r\n{{}}"
CHUNKED = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{}\r\n"
FAILURES = [
    (Reply(status=429), "http 429 rate_limit_exceeded"),
    (Reply(cut_after=1), "stream cut"),
    (Reply(reset_after=1), "connection reset"),
    (Reply(stall_after=1), "timeout"),
    (Reply(fail_after=1, code="engine_dead"), "error in stream: engine_dead"),
    (Reply(tells_usage=False), "no usage"),
]


@pytest.fixture(scope="module")
def process() -> Iterator[ScriptedServer]:
    with scripted_openai() as server:
        yield server


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("reply", "reason"), FAILURES)
async def test_failures_have_names_and_the_next_request_is_not_hurt(
    process: ScriptedServer, way: tuple[ApiName, TransportName], reply: Reply, reason: str
) -> None:
    process.rewrite(
        Script(
            replies=(
                reply,
                Reply(),
            )
        )
    )
    drive = Drive(process, way, timeout_s=0.3 if reason == "timeout" else 30)
    timeline, turn = await drive.ask()
    later, _ = await drive.ask()
    await drive.driver.close()
    assert (timeline.outcome, timeline.reason, turn) == (Outcome.FAILED, reason, None)
    assert timeline.ended_at is not None
    assert len(timeline.piece_times[0]) == {"http 429 rate_limit_exceeded": 0, "no usage": 3}.get(reason, 1)
    assert later.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (RAW.format("application/json"), "not a stream"),
        ("SSH-2.0-OpenSSH\r\n\r\n", "not http"),
        (RAW.format("text/event-stream"), "stream cut"),
        (RAW.format("text/event-stream\r\nContent-Encoding: gzip"), "compressed stream"),
        ("HTTP/1.1 307 -\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "http 307"),
        ("HTTP/1.1 500 -\r\nContent-Length: 99\r\n\r\nhalf", "http 500"),
        (CHUNKED.format("xyz"), "not http"),
        (CHUNKED.format("9\r\nhalf"), "stream cut"),
    ],
)
async def test_what_is_no_answer_at_all(process: ScriptedServer, raw: str, reason: str) -> None:
    process.rewrite(Script(replies=(Reply(raw=raw),)))
    drive = Drive(process)
    timeline, _ = await drive.ask()
    await drive.driver.close()
    assert timeline.reason == reason


async def test_what_is_no_frame(process: ScriptedServer) -> None:
    process.rewrite(Script(replies=(Reply(raw="\x83\x00"),)))
    drive = Drive(process, ("responses", "ws"))
    timeline, _ = await drive.ask()
    await drive.driver.close()
    assert timeline.reason == "not a websocket"


@pytest.mark.parametrize("body", ["\ufeffdata: {}\n\ndata: [DONE]\n\n", "data: {}\n\ndata: [DONE] \n\n"])
async def test_marks_and_spaces_around_events_cost_nothing(process: ScriptedServer, body: str) -> None:
    chunk = '{"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}'
    raw = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{body.format(chunk)}"
    process.rewrite(Script(replies=(Reply(raw=raw),)))
    drive = Drive(process, options=Options())
    timeline, turn = await drive.ask()
    await drive.driver.close()
    assert timeline.reason == ""
    assert turn is not None and turn.answered == "a"


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
async def test_a_server_that_does_not_answer_is_waited_for_only_so_long(
    way: tuple[ApiName, TransportName],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        drive = Drive(ScriptedServer(deaf.getsockname()[1], 0), way, timeout_s=0.2)
        with pytest.raises(ServerUnreachableError, match="no answer after"):
            await drive.driver.open()
        timeline, _ = await drive.ask()
        await drive.driver.close()
    assert timeline.reason == "timeout"


async def test_nobody_there() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = ScriptedServer(bound.getsockname()[1], 0)
        drive = Drive(nobody)
        with pytest.raises(ServerUnreachableError, match="connection refused"):
            await drive.driver.open()
        timeline, _ = await drive.ask()
        await drive.driver.close()
    assert (timeline.outcome, timeline.reason) == (Outcome.FAILED, "connection refused")


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_that_is_missing_and_one_that_is_sent(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(key="k"))
    drive = Drive(process, way)
    timeline, _ = await drive.ask()
    await drive.driver.close()
    assert timeline.reason == "http 401 invalid_api_key"
    drive = Drive(process, way, headers={"Authorization": "Bearer k"})
    timeline, _ = await drive.ask()
    await drive.driver.close()
    assert timeline.outcome is Outcome.COMPLETED
