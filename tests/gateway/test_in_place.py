"""Tokens that are told where they come, without waking a task: all else is as it was."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.client import EngineClient, EngineDeadError
from engine.connection import EngineConnection
from engine.link import EngineLink
from engine.messages import (
    AddRequest,
    FinishReason,
    FromEngine,
    LoadProgress,
    SamplingParams,
    StepReport,
    TokenDelta,
)
from engine.scripted import Script, ScriptedEngine
from engine.stats import EngineStats
from engine.wire import encode_frame
from gateway.generation import Generation
from gateway.mailbox import SHUTDOWN, Batch, FailureKind, StreamFailedError, StreamLimits
from gateway.news import News
from gateway.openai.responses.events import Event
from gateway.responses.event_log import EventLog
from gateway.rounds import Rounds
from gateway.token_stream import TokenStream
from tests.gateway.house import House, engine_info, raw_client, text_ids

Make = Callable[..., Any]


class Taker:
    """Implements InPlace; keeps what it got."""

    def __init__(self) -> None:
        self.clear = True
        self.goes_on = True
        self.error: Exception | None = None
        self.unclear_error: Exception | None = None
        self.taken: list[list[int]] = []

    def is_clear(self) -> bool:
        if self.unclear_error is not None:
            raise self.unclear_error
        return self.clear

    def take(self, batch: Batch) -> bool:
        if self.error is not None:
            raise self.error
        self.taken.append(batch.parts[0].token_ids)
        return self.goes_on


class SilentEngine(ScriptedEngine):
    """Delivers nothing by itself."""

    is_behind = False

    def submit(self, request: AddRequest, sink: Any) -> None:
        self.sink = sink


@pytest.fixture
async def engine() -> AsyncIterator[SilentEngine]:
    engine = SilentEngine(engine_info("nowhere"), lambda request: Script(token_ids=(1,)))
    yield engine
    await engine.close()


@pytest.fixture
async def stream(engine: SilentEngine) -> TokenStream:
    add = AddRequest(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=9, seed=0))
    stream = TokenStream(engine, [add], StreamLimits(high_units=4, hard_units=16))
    stream.submit()
    return stream


async def waiting(stream: TokenStream, taker: Taker, timeout_s: float | None = None) -> asyncio.Task[Any]:
    task = asyncio.create_task(stream.next_batch(timeout_s, taker))
    await asyncio.sleep(0)
    return task


def deliver(engine: SilentEngine, *ids: int, finish: FinishReason | None = None) -> None:
    engine.sink.deliver(TokenDelta("r", ids, finish_reason=finish, ends_request=finish is not None))


async def test_what_comes_is_taken_at_once_and_the_task_sleeps_on(
    engine: SilentEngine, stream: TokenStream
) -> None:
    taker = Taker()
    task = await waiting(stream, taker)
    deliver(engine, 1)
    deliver(engine, 2, 3)
    assert taker.taken == [[1], [2, 3]]
    await asyncio.sleep(0.01)
    assert not task.done()
    deliver(engine, 4, finish=FinishReason.LENGTH)
    batch = await task
    assert batch.parts[0].token_ids == [4]
    assert batch.parts[0].finish_reason is FinishReason.LENGTH
    assert taker.taken == [[1], [2, 3]], "the end is the task's"


async def test_what_cannot_go_out_gathers_for_the_task(engine: SilentEngine, stream: TokenStream) -> None:
    taker = Taker()
    task = await waiting(stream, taker)
    taker.clear = False
    deliver(engine, 1)
    taker.clear = True
    deliver(engine, 2)
    batch = await task
    assert batch.parts[0].token_ids == [1, 2]
    assert taker.taken == [], "nothing may overtake what the task is about to take"


async def test_steps_that_come_together_are_one_batch(engine: SilentEngine, stream: TokenStream) -> None:
    taker = Taker()
    task = await waiting(stream, taker)
    engine.is_behind = True
    deliver(engine, 1)
    deliver(engine, 2)
    assert taker.taken == []
    await asyncio.sleep(0)
    assert taker.taken == [[1, 2]]
    deliver(engine, 3)
    engine.is_behind = False
    deliver(engine, 4)
    assert taker.taken == [[1, 2], [3, 4]]
    await asyncio.sleep(0)
    assert taker.taken == [[1, 2], [3, 4]]
    assert not task.done()
    task.cancel()


async def test_a_failure_goes_to_the_task_after_what_came(engine: SilentEngine, stream: TokenStream) -> None:
    taker = Taker()
    task = await waiting(stream, taker)
    engine.is_behind = True
    deliver(engine, 1)
    engine.sink.fail(EngineDeadError("gone"))
    batch = await task
    assert batch.parts[0].token_ids == [1]
    with pytest.raises(StreamFailedError) as caught:
        await stream.next_batch(None, taker)
    assert caught.value.failure.kind is FailureKind.ENGINE_DEAD
    assert taker.taken == []


async def test_what_goes_wrong_in_place_is_raised_in_the_task(
    engine: SilentEngine, stream: TokenStream
) -> None:
    taker = Taker()
    taker.error = ConnectionResetError("the client went")
    task = await waiting(stream, taker)
    deliver(engine, 1)
    with pytest.raises(ConnectionResetError, match="the client went"):
        await task


@pytest.mark.parametrize("is_behind", [False, True])
async def test_who_cannot_say_whether_it_is_clear_harms_nobody_else(
    engine: SilentEngine, stream: TokenStream, is_behind: bool
) -> None:
    taker = Taker()
    task = await waiting(stream, taker)
    engine.is_behind, taker.unclear_error = is_behind, OSError("no socket")
    deliver(engine, 1)
    with pytest.raises(OSError, match="no socket"):
        await task
    assert (await stream.next_batch(0.1)) is not None


async def test_an_answer_that_was_complete_does_not_fail_afterwards(make_house: Make) -> None:
    """Its end came in place, and the task that is to tell it has not had its turn."""
    house: House = await make_house(step_s=0.002)
    house.script(Script(token_ids=text_ids("one END two"), endless=True))
    shown = Generation.show

    def show_and_end(generation: Generation, *args: Any) -> bool:
        goes_on = shown(generation, *args)
        if not goes_on:
            generation.stream.end(SHUTDOWN)
        return goes_on

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Generation, "show", show_and_end)
        reply = await house.complete(stream=True, stop="END")
    assert (reply.text, reply.finish_reasons[-1]) == ("one ", "stop")
    await house.idle()


async def test_who_wants_its_task_gets_nothing_before_that_went_on(
    engine: SilentEngine, stream: TokenStream
) -> None:
    taker = Taker()
    taker.goes_on = False
    task = await waiting(stream, taker)
    deliver(engine, 1)
    deliver(engine, 2)
    batch = await task
    assert batch.parts[0].token_ids == [2]
    assert taker.taken == [[1]]


async def test_time_counts_from_what_was_taken_last(engine: SilentEngine, stream: TokenStream) -> None:
    taker = Taker()
    loop = asyncio.get_running_loop()
    task = await waiting(stream, taker, timeout_s=0.1)
    await asyncio.sleep(0.06)
    deliver(engine, 1)
    taken_at = loop.time()
    assert await task is None
    assert round(loop.time() - taken_at, 6) >= 0.1  # the clock counts in milliseconds


async def test_what_came_as_time_was_up_is_not_lost(engine: SilentEngine, stream: TokenStream) -> None:
    taker = Taker()
    assert await stream.next_batch(0.001, taker) is None
    deliver(engine, 1)
    batch = await stream.next_batch(None, taker)
    assert batch is not None
    assert batch.parts[0].token_ids == [1]


async def test_news_that_were_there_before_are_not_waited_for() -> None:
    news = News()
    news.set()
    assert await news.come_within(0.0)
    news.clear()
    assert not await news.come_within(0.001)


async def test_a_round_goes_on_after_one_that_fails() -> None:
    rounds, called = Rounds(), list[str]()
    rounds.add(lambda: called.remove("nothing"))
    rounds.add(lambda: called.append("b"))
    await asyncio.sleep(0)
    assert called == ["b"]


async def test_a_round_waits_for_an_engine_that_is_ahead() -> None:
    is_behind, called = True, list[str]()
    rounds = Rounds(lambda: is_behind, patience_s=60.0)
    rounds.add(lambda: called.append("a"))
    await asyncio.sleep(0.01)
    rounds.add(lambda: called.append("b"))
    assert called == []
    is_behind = False
    async with asyncio.timeout(5):
        while not called:
            await asyncio.sleep(0)
    assert called == ["a", "b"]


async def test_a_round_is_run_at_once_when_the_engine_has_been_caught_up_with() -> None:
    rounds, called = Rounds(lambda: True, patience_s=60.0), list[str]()
    for name in ("a", "b"):
        rounds.add(lambda name=name: called.append(name))  # type: ignore[misc]
        await asyncio.sleep(0.01)
        rounds.run()
        assert called[-1] == name
    rounds.run()
    assert called == ["a", "b"]


async def test_what_is_kept_for_a_round_pauses_nobody(engine: SilentEngine) -> None:
    """It is not the client who is slow, so the engine need not stop and the stream not end over it."""
    signals: list[str] = []
    engine.pause = engine.resume = signals.append  # type: ignore[method-assign]
    engine.is_behind = True
    add = AddRequest(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=99, seed=0))
    rounds = Rounds(lambda: engine.is_behind, patience_s=60.0)
    stream = TokenStream(engine, [add], StreamLimits(high_units=4, hard_units=16), rounds=rounds)
    stream.submit()
    taker = Taker()
    task = await waiting(stream, taker)
    for number in range(40):
        deliver(engine, number)
    rounds.run()
    assert [token for batch in taker.taken for token in batch] == [*range(40)]
    assert len(taker.taken) <= 14, "three or more at a time"
    assert signals == [] and not task.done()
    task.cancel()


async def test_a_stream_is_due_once_in_a_round(engine: SilentEngine) -> None:
    engine.is_behind = True
    add = AddRequest(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=99, seed=0))
    rounds = Rounds(lambda: engine.is_behind, patience_s=60.0)
    added: list[Any] = []
    rounds.add = added.append  # type: ignore[method-assign]
    stream = TokenStream(engine, [add], StreamLimits(), rounds=rounds)
    stream.submit()
    taker = Taker()
    task = await waiting(stream, taker)
    for engine.is_behind in (True, True, False, True):
        deliver(engine, 1)
    assert len(added) == 1 and taker.taken == [[1, 1, 1]]
    added[0]()
    assert taker.taken == [[1, 1, 1], [1]]
    deliver(engine, 1)
    assert len(added) == 2
    task.cancel()


async def test_a_round_does_not_wait_for_ever() -> None:
    rounds, called = Rounds(lambda: True, patience_s=0.01), list[str]()
    for name in ("a", "b"):
        rounds.add(lambda name=name: called.append(name))  # type: ignore[misc]
        async with asyncio.timeout(5):
            while name not in called:
                await asyncio.sleep(0)
    assert called == ["a", "b"]


async def test_a_round_calls_each_once() -> None:
    rounds, called = Rounds(), list[str]()
    rounds.add(lambda: called.append("a"))
    rounds.add(lambda: called.append("b"))
    assert called == []
    await asyncio.sleep(0)
    assert called == ["a", "b"]
    rounds.add(lambda: called.append("c"))
    await asyncio.sleep(0)
    assert called == ["a", "b", "c"]


def test_the_link_tells_whether_more_has_come() -> None:
    seen: list[bool] = []
    link = EngineLink(lambda event: seen.append(link.is_behind), lambda reason: None)
    frame = encode_frame(FromEngine(1, LoadProgress("weights", 1, 2)))
    link.data_received(frame + frame)
    assert seen == [True, False]
    link.data_received(frame + frame[:3])
    assert seen[2:] == [True]
    link.data_received(frame[3:])
    assert seen[3:] == [False]
    link.data_received(encode_frame(FromEngine(1, LoadProgress("weights", 1, 2), num_behind=1)))
    link.data_received(frame)
    assert seen[4:] == [True, False]
    link.data_received(encode_frame(FromEngine(1, LoadProgress("weights", 1, 2), num_behind=1)))
    link.connection_lost(None)
    assert not link.is_behind, "nothing comes any more"


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[EngineClient, EngineConnection]]:
    """Both ends of a socket that takes a few messages only."""
    client = EngineClient(stall_timeout_s=60, on_progress=lambda progress: None)
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    engine = EngineConnection(theirs, epoch=1)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: client._link, sock=ours)
    client._link._on_closed = lambda reason: None  # there is no process to bury
    try:
        yield client, engine
    finally:
        transport.abort()
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.close, 5.0)


async def test_a_loop_that_lags_writes_once_for_all_that_the_engine_has_got_ahead() -> None:
    """Most of it waits in the engine's outbox, as the socket takes some messages only."""
    names = ["a", "b", "c", "d"]
    takers = [Taker() for _ in names]
    async with linked() as (client, engine), asyncio.timeout(20):
        rounds = Rounds(lambda: client.is_behind, patience_s=5.0)
        streams = [_stream_of(client, name, rounds) for name in names]
        waits = [await waiting(stream, taker) for stream, taker in zip(streams, takers, strict=True)]
        for number in range(200):  # in turns, while the loop is at something else
            delta = TokenDelta(names[number % 4], (number,))
            engine.send(StepReport(step=number, deltas=(delta,), stats=EngineStats(), stage_seconds={}))
        while sum(sum(map(len, taker.taken)) for taker in takers) < 200:
            await asyncio.sleep(0.001)
        for wait in waits:
            wait.cancel()
    for first, taker in enumerate(takers):
        assert [token for batch in taker.taken for token in batch] == [*range(first, 200, 4)]
        assert len(taker.taken) <= 3, "a few writes for 50 tokens"


def _stream_of(engine: EngineClient, name: str, rounds: Rounds) -> TokenStream:
    add = AddRequest(request_id=name, prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=999, seed=0))
    stream = TokenStream(engine, [add], StreamLimits(), rounds=rounds)
    stream.submit()
    return stream


# ---- from outside ----


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_events_are_framed_as_the_client_reads_http(make_house: Make, path: str, version: str) -> None:
    house: House = await make_house(step_s=0.002)
    house.say(text_ids('one by one "é" <\\>'))
    body: dict[str, Any] = {"stream": True, "max_tokens": 50}
    body |= (
        {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    )
    payload = json.dumps(body).encode()
    async with raw_client(house) as raw:
        head = f"POST {path} HTTP/{version}\r\nHost: test\r\nConnection: close\r\n"
        await raw.send(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        head_bytes, _, rest = (await raw.read_to_end()).partition(b"\r\n\r\n")
    is_chunked = b"chunked" in head_bytes
    assert is_chunked == (version == "1.1")
    body_bytes = _unchunked(rest) if is_chunked else rest
    events = body_bytes.removesuffix(b"\n\n").split(b"\n\n")
    assert events[-1] == b"data: [DONE]"
    choices = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events[:-1]]
    texts = [choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices]
    assert "".join(texts) == 'one by one "é" <\\>'
    assert len([text for text in texts if text]) > 10, "an event for each token"


def _unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found += data[: int(size, 16)]
        assert data[int(size, 16) :][:2] == b"\r\n"
        data = data[int(size, 16) + 2 :]
    return found


async def test_a_stop_string_that_comes_in_place_ends_the_answer(make_house: Make) -> None:
    house: House = await make_house(step_s=0.002)
    house.script(Script(token_ids=text_ids("one END two"), endless=True))
    reply = await house.complete(stream=True, stop="END", stream_options={"include_usage": True})
    assert reply.text == "one "
    assert reply.finish_reasons.count("stop") == 1
    assert reply.events[-1]["usage"]["completion_tokens"] == len("one END")
    await house.idle()


async def test_usage_in_every_chunk_counts_on(make_house: Make) -> None:
    house: House = await make_house(step_s=0.002)
    house.say(text_ids("abcdef"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = await house.complete(stream=True, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in reply.events if event["choices"]]
    assert counts == sorted(counts)
    assert len(set(counts)) > 4


async def test_a_full_log_is_emptied_as_it_is_told(make_house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    add = EventLog.add

    def noted(log: EventLog, events: Iterable[Event]) -> None:
        add(log, events)
        sizes.append(log.num_bytes)

    monkeypatch.setattr(EventLog, "add", noted)
    house: House = await make_house(step_s=0.0005, max_event_log_bytes=8_000)
    house.say(text_ids("abcdefgh" * 25))
    body = {"input": "Hi", "stream": True, "max_output_tokens": 240}
    reply = await house.request("POST", "/v1/responses", json=body)
    lines = [line for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "abcdefgh" * 25
    assert len(deltas) > 50
    assert max(sizes[:-6]) < 9_000, "an event beyond the bound; the last ones have the whole text"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
async def test_an_answer_that_is_told_as_a_whole_has_all_of_it(make_house: Make, path: str) -> None:
    house: House = await make_house(step_s=0.001)
    house.say(text_ids("one by one"))
    body = {"prompt": "Hi", "max_tokens": 50} if path == "/v1/completions" else {"input": "Hi"}
    told = (await house.request("POST", path, json=body)).json
    if path == "/v1/completions":
        assert told["choices"][0]["text"] == "one by one"
    else:
        assert told["output"][0]["content"][0]["text"] == "one by one"
    await house.idle()
