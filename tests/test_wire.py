"""Frames survive any cutting of the byte stream, and strangers' bytes are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig, MemorySize
from engine.messages import (
    AbortRequest,
    AddRequest,
    CheckIntegrity,
    Configure,
    DescribeSessions,
    EngineCommand,
    EngineFailed,
    FinishReason,
    ForgetKv,
    FromEngine,
    LoadProgress,
    Retention,
    SamplingParams,
    SessionsReport,
    StepReport,
    ToEngine,
    TokenDelta,
    TokenLogprobs,
)
from engine.stats import EngineStats, SessionKv
from engine.wire import MAX_FRAME_BYTES, FrameDecoder, WireError, encode_frame

COMMANDS: list[EngineCommand] = [
    Configure(EngineConfig(model="m", device_kv=MemorySize(num_bytes=5), cache_secret=b"\x00\xff")),
    AddRequest(
        request_id="a",
        prompt_token_ids=(1, 2, 70000),
        sampling=SamplingParams(max_tokens=3, seed=2**63 - 1, logit_bias={5: -1.5}, stop_token_ids=(7,)),
        cache_salt=b"\x01",
        session="s",
        retention=Retention(keep_s=0.5, lowest="host"),
        kv_quota=0.25,
    ),
    AbortRequest("é"),
    ForgetKv(token_ids=(1, 2), from_token=1, cache_salt=b"\x01"),
    DescribeSessions(4, ("s", "")),
    CheckIntegrity(3),
]


@given(st.lists(st.sampled_from(COMMANDS), max_size=6), st.lists(st.integers(1, 40), max_size=30))
def test_any_cutting_gives_the_same_messages(commands: list[EngineCommand], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(ToEngine(9, command)) for command in commands)
    decoder = FrameDecoder(ToEngine)
    received = []
    for cut in [*cuts, len(stream)]:
        received += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert received == [ToEngine(9, command) for command in commands]


def test_events_round_trip() -> None:
    delta = TokenDelta(
        "a",
        (1, 2),
        (TokenLogprobs(-0.5, ((1, -0.5), (2, -1.0))), TokenLogprobs(-2.0)),
        FinishReason.STOP,
        2,
        16,
    )
    events = [
        StepReport(step=4, deltas=(delta,), stats=EngineStats(num_running=1), stage_seconds={"execute": 0.5}),
        LoadProgress("weights", 1, 2),
        SessionsReport(4, (SessionKv("s", 40, "Dh"), SessionKv("", 0, ""))),
        EngineFailed("why"),
    ]
    decoder = FrameDecoder(FromEngine)
    frames = b"".join(encode_frame(FromEngine(1, event)) for event in events)
    assert [envelope.body for envelope in decoder.feed(frames)] == events


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 1) + b"\x01",
        encode_frame(FromEngine(1, LoadProgress("weights", 1, 2))),
    ],
)
def test_what_is_not_ours_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        FrameDecoder(ToEngine).feed(frame)
