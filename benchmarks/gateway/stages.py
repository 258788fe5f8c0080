"""Where the processor time of a token goes, stage by stage.

Each stage's own function runs in a tight loop over the same data: frames with a token for each of so many
streams, and a detokenizer, a matcher, a format and a socket for each of them, taken in turn as the gateway
does, so that nothing is nearer at hand than it would be there. What is left of the time that the gateway
took for a token as a whole (``carrying``) is told as the rest: the loop, delivery, accounts and metrics, and
what it costs the kernel to wake a reader on another core, for here the sockets are read by the same process.
Beside ``benchmarks.scripted_server`` the one module here that imports the gateway.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from engine.config import EngineConfig, EngineScript
from engine.messages import AddRequest, EngineInfo, FromEngine, SamplingParams, StepReport
from engine.scripted_core import ScriptedCore
from engine.scripted_process import scripted_info, words_of
from engine.scripted_words import Words
from engine.wire import FrameDecoder, encode_frame
from gateway.answer import Piece
from gateway.detokenizer import Detokenizer
from gateway.openai.answers import Identity
from gateway.openai.chat_answers import ChatFormat
from gateway.openai.validated import GenerationRequest, Prompt
from gateway.protocol import sse
from gateway.stop_matcher import StopMatcher
from gateway.tokenizer import TextCodec

_STOP = "\n\nUser:"
_SAMPLING = SamplingParams(max_tokens=2**20, seed=0)
_NUM_FRAMES = 8


@dataclass(frozen=True, slots=True)
class Stages:
    """Microseconds of a token. ``stop_check_us`` is of a request with one stop string; most have none."""

    ipc_decode_us: float
    detokenize_us: float
    stop_check_us: float
    encode_us: float
    socket_us: float

    @property
    def total_us(self) -> float:
        """Of a request without stop strings."""
        return self.ipc_decode_us + self.detokenize_us + self.encode_us + self.socket_us


def measure(num_streams: int, rounds: int) -> Stages:
    info = scripted_info(EngineConfig(model="", script=EngineScript(1.0)))
    frames = _frames(num_streams, words_of(Path(info.tokenizer_dir)))
    token_ids = [_token_ids(frame) for frame in frames]
    texts, detokenize_us = _detokenized(info, token_ids, rounds)
    events, encode_us = _encoded(info, texts, rounds)
    return Stages(
        _median_us(num_streams, rounds, lambda: _decode(frames)) / _NUM_FRAMES,
        detokenize_us,
        _stop_check_us(texts, rounds),
        encode_us,
        uvloop.run(_socket_us(events, rounds)),
    )


def _median_us(num_tokens: int, rounds: int, work: Callable[[], object]) -> float:
    """Of one token, by this thread's processor time."""
    found = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        found.append(time.thread_time() - start)
    return 1e6 * statistics.median(found) / num_tokens


def _frames(num_streams: int, words: Words) -> list[bytes]:
    """Of so many steps, as the engine sends them."""
    times = iter(range(2**20))
    core = ScriptedCore(
        EngineScript(1.0), words, max_num_seqs=num_streams, num_blocks=1, clock=lambda: float(next(times))
    )
    for number in range(num_streams):
        core.add(
            AddRequest(request_id=f"chatcmpl-{number:032x}", prompt_token_ids=(number,), sampling=_SAMPLING)
        )
    reports = [core.step() for _ in range(_NUM_FRAMES)]
    return [encode_frame(FromEngine(1, report)) for report in reports if report is not None]


def _decode(frames: Sequence[bytes]) -> None:
    decoder = FrameDecoder(FromEngine)
    for frame in frames:
        decoder.feed(frame)


def _token_ids(frame: bytes) -> list[int]:
    (envelope,) = FrameDecoder(FromEngine).feed(frame)
    assert isinstance(envelope.body, StepReport)
    return [delta.token_ids[0] for delta in envelope.body.deltas]


def _detokenized(
    info: EngineInfo, steps: Sequence[Sequence[int]], rounds: int
) -> tuple[list[list[str]], float]:
    table = TextCodec.load(info.tokenizer_dir).table
    detokenizers = [Detokenizer(table) for _ in steps[0]]

    def work() -> list[list[str]]:
        return [[one.push(id) for one, id in zip(detokenizers, step, strict=True)] for step in steps]

    return work(), _median_us(len(steps) * len(steps[0]), rounds, work)


def _stop_check_us(steps: Sequence[Sequence[str]], rounds: int) -> float:
    matchers = [StopMatcher([_STOP]) for _ in steps[0]]

    def work() -> None:
        for step in steps:
            for matcher, text in zip(matchers, step, strict=True):
                matcher.push(text)

    return _median_us(len(steps) * len(steps[0]), rounds, work)


def _encoded(
    info: EngineInfo, steps: Sequence[Sequence[str]], rounds: int
) -> tuple[list[list[bytes]], float]:
    table = TextCodec.load(info.tokenizer_dir).table
    request = GenerationRequest(model="scripted", prompts=(Prompt((1,), _SAMPLING),), stream=True)
    formats = [
        ChatFormat(request, Identity(f"chatcmpl-{number:032x}", 1, "scripted", "fp_0123456789ab"), table)
        for number, _ in enumerate(steps[0])
    ]

    def work() -> list[list[bytes]]:
        return [
            [
                b"".join(map(sse.event, one.piece(0, Piece(text))))
                for one, text in zip(formats, step, strict=True)
            ]
            for step in steps
        ]

    return work(), _median_us(len(steps) * len(steps[0]), rounds, work)


async def _socket_us(steps: Sequence[Sequence[bytes]], rounds: int) -> float:
    """One write of a chunk to each of so many TCP connections; it is read when the time is taken."""
    loop = asyncio.get_running_loop()
    transports: list[asyncio.Transport] = []
    readers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=len(steps[0])) as listener:
        for _ in steps[0]:
            readers.append(socket.create_connection(listener.getsockname()))
            transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, listener.accept()[0])
            transports.append(transport)
    found = []
    for number in range(rounds * len(steps)):
        start = time.thread_time()
        for transport, event in zip(transports, steps[number % len(steps)], strict=True):
            transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        await asyncio.sleep(0)
        found.append(time.thread_time() - start)
        for reader in readers:
            reader.recv(2**16)
    for reader in readers:
        reader.close()
    return 1e6 * statistics.median(found) / len(readers)
