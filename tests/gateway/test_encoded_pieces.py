"""What is encoded ahead, counted or framed by hand is, to the byte, what the libraries make."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest
from aiohttp import WSMsgType
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_websocket import WebSocketWriter
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from engine.messages import FinishReason, SamplingParams, TokenDelta
from gateway.answer import Piece
from gateway.detokenizer import TokenTable
from gateway.histogram import TokenHistogram
from gateway.mailbox import Mailbox, MailboxState, Signal, StreamLimits
from gateway.openai.answers import Identity, make_usage
from gateway.openai.chat_answers import ChatChunk, ChatFormat, ChunkChoice, Delta
from gateway.openai.completions import Completion, CompletionChoice, CompletionFormat
from gateway.openai.responses.events import ResponseEvents, TextDeltaEvent
from gateway.openai.validated import GenerationRequest, Prompt
from gateway.protocol.ws_frames import text_frame

TABLE = TokenTable(())
TEXTS = st.one_of(st.text(min_size=1), st.sampled_from(['"', "\\", "\n\r\t", "\u2028", "é😀", "text ", "}"]))
IDENTITY = Identity("chatcmpl-1", 1_700_000_000, 'a "model" text', "fp_1")


def request_with(**fields: Any) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=9, seed=0, n=2)
    return GenerationRequest(
        model="m", prompts=(Prompt((1,), sampling),), num_choices=2, stream=True, **fields
    )


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.integers(0, 1))
def test_chunks_of_a_chat(texts: list[str], include_usage: bool, index: int) -> None:
    made = ChatFormat(request_with(include_usage=include_usage), IDENTITY, TABLE)
    usage: Any = None if include_usage else msgspec.UNSET
    for number, text in enumerate(texts):
        if include_usage and number == 1:
            usage = make_usage(1, 2, 0)
            made.count(usage)
        choice = ChunkChoice(index=index, delta=Delta(content=text))
        whole = msgspec.json.encode(ChatChunk(**IDENTITY.fields, choices=[choice], usage=usage))
        assert made.piece(index, Piece(text)) == [whole]


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.integers(0, 1))
def test_chunks_of_a_completion(texts: list[str], include_usage: bool, index: int) -> None:
    made = CompletionFormat(request_with(include_usage=include_usage), IDENTITY, TABLE)
    usage: Any = None if include_usage else msgspec.UNSET
    for number, text in enumerate(texts):
        if include_usage and number == 1:
            usage = make_usage(1, 2, 0)
            made.count(usage)
        choice = CompletionChoice(index=index, text=text)
        whole = msgspec.json.encode(Completion(**IDENTITY.fields, choices=[choice], usage=usage))
        assert made.piece(index, Piece(text)) == [whole]


@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_deltas_of_a_response(texts: list[str]) -> None:
    events, numbers = ResponseEvents(TABLE), list[int]()
    for thought in ("", "hm"):
        for number, text in enumerate(texts):
            *others, found = events.piece(Piece(text, thought=thought if number == 0 else ""))
            numbers += [event.sequence_number for event in (*others, found)]
            told = json.loads(found.data)
            event = TextDeltaEvent(
                sequence_number=found.sequence_number, item_id=told["item_id"],
                output_index=told["output_index"], delta=text,
            )  # fmt: skip
            assert found.data == msgspec.json.encode(event)
            assert told["output_index"] == (2 if thought else 0)
    assert numbers == list(range(len(numbers)))
    assert events.close_item("completed")[0].data.count(b"response.output_text.done") == 1
    assert events.output[0].content[0].text == "".join(texts)  # type: ignore[union-attr, index]


def test_a_histogram_shows_what_prometheus_own_shows() -> None:
    bounds, draws = (0.002, 0.01, 0.5, 1, 2), random.Random(0)
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    one = Histogram("gap_seconds", "A gap.", buckets=bounds, registry=theirs)
    other = TokenHistogram("gap_seconds", "A gap.", bounds)
    ours.register(other)
    for value in (*bounds, 0, 100, *(draws.random() for _ in range(100))):
        one.observe(value)
        other.observe(value)
    for _ in range(3):
        one.observe(0.25)
    other.observe(0.25, 3)
    assert _settled(generate_latest(ours)) == _settled(generate_latest(theirs))


def _settled(text: bytes) -> list[str]:
    """Without when it was made; sums to nine digits, since theirs are of another order."""
    lines = [line for line in text.decode().splitlines() if not line.startswith("gap_seconds_created")]
    return [
        f"{line[:15]} {float(line.split()[1]):.9g}" if line.startswith("gap_seconds_sum") else line
        for line in lines
    ]


class _Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.data += data


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 100_000])
async def test_frames_of_a_websocket(size: int) -> None:
    wire: Any = _Wire()
    writer = WebSocketWriter(BaseProtocol(asyncio.get_running_loop()), wire, limit=2**20)
    await writer.send_frame(b"x" * size, WSMsgType.TEXT)
    assert text_frame(b"x" * size) == wire.data


@given(
    st.lists(st.integers(0, 9), max_size=3), st.sampled_from([None, FinishReason.STOP]), st.booleans(),
    st.integers(0, 2), st.booleans(), st.integers(0, 5),
)  # fmt: skip
def test_what_passes_through_a_mailbox_is_what_was_put_and_taken(
    ids: list[int], finish: FinishReason | None, ends: bool, index: int, is_empty: bool, num_cached: int
) -> None:
    delta = TokenDelta(
        "r", tuple(ids), finish_reason=finish, ends_request=ends, index=index, num_cached_tokens=num_cached
    )
    one, other = (Mailbox(StreamLimits(high_units=9, hard_units=20), num_seqs=2) for _ in range(2))
    for box in (one, other):
        if not is_empty:
            box.put(TokenDelta("r", (7,)))
    passed = one.try_pass(delta)
    assert (passed is None) == bool(finish or ends or index > 1 or not is_empty)
    if passed is not None:
        assert other.put(delta) is Signal.NONE
        assert passed == other.take().batch
    assert one.state is MailboxState.FLOWING
    assert one.is_empty == is_empty
