"""The process of the scripted server: ``python -m benchmarks.scripted_openai_process``.

Reads its script, prints its port, and serves until its input ends. HTTP is done by hand, as far as clients
need it that are well: a server of a library's would cost more than what it is to measure.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import uvloop

from benchmarks.scripted_events import ChunkEvents, ResponseEvents
from benchmarks.scripted_openai import Record, Reply, Script
from benchmarks.scripted_stream import Sink, Stream, Wanted

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TOKEN = re.compile(r"\n| ?[^\s]+")
_SYLLABLES = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "dlmnrst"]
Json = dict[str, Any]


class Tokenizer:
    """Words with the space in front of them, numbered as they are met."""

    def __init__(self, two_tokens: Sequence[str]) -> None:
        self._two_tokens = frozenset(two_tokens)
        self._texts = [f" {word}" for word in _SYLLABLES]
        self._ids = {text: id for id, text in enumerate(self._texts)}

    def ids(self, text: str) -> list[int]:
        return [id for token in _TOKEN.findall(text) for id in self._of(token)]

    def text(self, ids: Sequence[int]) -> str:
        """Raises IndexError."""
        return "".join(self._texts[id] for id in ids)

    def _of(self, token: str) -> list[int]:
        parts = [token[:2], token[2:]] if token.strip() in self._two_tokens else [token]
        for part in parts:
            if part not in self._ids:
                self._ids[part] = len(self._texts)
                self._texts.append(part)
        return [self._ids[part] for part in parts]


class House:
    """What all connections share."""

    def __init__(self, script: Script) -> None:
        self.use(script)

    def use(self, script: Script) -> None:
        self.script = script
        self.tokenizer = Tokenizer(script.two_tokens)
        self.records: list[Record] = []
        self.histories: dict[str, list[Json]] = {}
        self._running = 0
        self._waiting: deque[Stream] = deque()

    def next_reply(self) -> Reply:
        return self.script.replies[len(self.records) % len(self.script.replies)]

    def admit(self, stream: Stream) -> None:
        limit = self.script.max_running
        if limit is not None and self._running >= limit:
            self._waiting.append(stream)
        else:
            self._running += 1
            stream.start()

    def release(self, stream: Stream) -> None:
        if stream in self._waiting:
            self._waiting.remove(stream)
        elif self._waiting:
            self._waiting.popleft().start()
        else:
            self._running -= 1


class HttpSink:
    """Server-sent events in chunks. Implements Sink."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def begin(self) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def write(self, events: Sequence[bytes]) -> None:
        if events:
            body = b"".join(b"data: %b\n\n" % event for event in events)
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def end(self) -> None:
        self.transport.write(b"0\r\n\r\n")


class SocketSink:
    """Messages of a WebSocket. Implements Sink."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def begin(self) -> None:
        pass

    def write(self, events: Sequence[bytes]) -> None:
        self.transport.write(b"".join(_framed(1, event) for event in events if event != b"[DONE]"))

    def end(self) -> None:
        pass


def _framed(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    return bytes((0x80 | opcode, 126)) + size.to_bytes(2) + payload


class Peer(asyncio.Protocol):
    """One connection of a client's."""

    _number = 0

    def __init__(self, house: House) -> None:
        Peer._number += 1
        self._connection = Peer._number
        self._house = house
        self._buffer = b""
        self._is_socket = False
        self._has_ponged = False
        self._held: list[bytes] = []
        self._num_asked = 0
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None:
            self._stream.leave()

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.hold()

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.go_on()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._read_message() if self._is_socket else self._read_request():
            pass

    # ---- HTTP -----------------------------------------------------------------------------------

    def _read_request(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return False
        self._buffer = rest[length:]
        method, path, _ = first.split(" ")
        key = self._house.script.key
        if key and path.startswith("/v1/") and headers.get("authorization") != f"Bearer {key}":
            self._answer(401, {"error": {"code": "invalid_api_key", "message": "as scripted"}})
        elif "sec-websocket-key" in headers:
            self._upgrade(headers["sec-websocket-key"])
        elif path.startswith("/v1/") and method == "POST":
            self._generate(path, json.loads(rest[:length]), HttpSink(self._transport))
        else:
            self._page(path, rest[:length])
        return True

    def _page(self, path: str, body: bytes) -> None:
        house, script = self._house, self._house.script
        if path == "/records":
            self._answer(200, house.records)
        elif path == "/script":
            house.use(msgspec.json.decode(body, type=Script))
            self._answer(200, {})
        elif path == "/v1/models":
            card = {"id": script.model, "owned_by": script.kind, "max_model_len": script.window}
            self._answer(200, {"object": "list", "data": [card]})
        elif path == "/version":
            self._answer(200, {"version": "1.2.3"})
        elif path == "/props" and script.kind == "llamacpp":
            self._answer(200, {"build_info": "b123", "default_generation_settings": {"n_ctx": script.window}})
        elif path == "/metrics" and script.metrics:
            self._answer(200, script.metrics)
        elif path in ("/tokenize", "/detokenize") and script.has_tokenizer:
            self._tokens(path, json.loads(body))
        else:
            self._answer(200 if path == "/health" else 404, {})

    def _tokens(self, path: str, body: Json) -> None:
        field = "content" if self._house.script.kind == "llamacpp" else "prompt"
        tokenizer = self._house.tokenizer
        try:
            if path == "/tokenize":
                self._answer(200, {"tokens": tokenizer.ids(body.get(field, ""))})
            else:
                self._answer(200, {field: tokenizer.text(body["tokens"])})
        except IndexError:
            self._answer(400, {"error": {"message": "no such token"}})

    def _answer(self, status: int, value: object) -> None:
        body = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        self._transport.write(
            b"HTTP/1.1 %d -\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    # ---- WebSocket ------------------------------------------------------------------------------

    def _upgrade(self, key: str) -> None:
        accept = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest())
        self._transport.write(
            b"HTTP/1.1 101 -\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: %b\r\n\r\n"
            % accept
        )
        self._transport.write(_framed(9, b"are you there"))
        self._is_socket = True

    def _read_message(self) -> bool:
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        size, start = buffer[1] & 0x7F, 2
        if size >= 126:
            start += 2 if size == 126 else 8
            size = int.from_bytes(buffer[2:start])
        if len(buffer) < start + 4 + size:
            return False
        mask, payload = buffer[start : start + 4], buffer[start + 4 : start + 4 + size]
        self._buffer = buffer[start + 4 + size :]
        text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self._take_message(buffer[0] & 0x0F, text)
        return True

    def _take_message(self, opcode: int, payload: bytes) -> None:
        """Nobody is answered who does not answer a ping."""
        if opcode == 8:
            self._transport.close()
        elif opcode == 1 and self._has_ponged:
            self._generate("/v1/responses", json.loads(payload), SocketSink(self._transport))
        elif opcode == 1:
            self._held.append(payload)
        elif opcode == 10:
            self._has_ponged = True
            while self._held:
                self._take_message(1, self._held.pop(0))

    # ---- answers --------------------------------------------------------------------------------

    def _generate(self, path: str, body: Json, sink: Sink) -> None:
        house, script = self._house, self._house.script
        self._num_asked += 1
        if script.drops_reused_s is not None and self._num_asked > 1:
            asyncio.get_running_loop().call_later(script.drops_reused_s, self._drop)
            return
        options = body.get("stream_options") or {}
        fields = {**body, **options}
        number, reply = len(house.records), house.next_reply()
        refused = next((field for field in script.refuses if field in fields), None)
        if refused is not None:
            self._refuse(sink, 400, "unsupported_parameter")
            return
        for field in script.ignores:
            fields.pop(field, None)
        num_tokens = script.length_of(fields)
        prompt, prompt_tokens = self._prompt(path, body, number, num_tokens)
        record = Record(
            number=number, path=path, prompt=prompt, body=body, connection=self._connection,
            arrived_at=time.perf_counter(),
        )  # fmt: skip
        house.records.append(record)
        if reply.status != 200:
            self._refuse(sink, reply.status, reply.code)
        elif reply.raw:
            self._transport.write(reply.raw.encode())
            self._transport.close()
        else:
            wanted = Wanted(prompt_tokens, num_tokens, int(fields.get("n", 1)))
            self._stream_to(sink, path, fields, record, reply, wanted)

    def _stream_to(
        self, sink: Sink, path: str, fields: Json, record: Record, reply: Reply, wanted: Wanted
    ) -> None:
        events: ChunkEvents | ResponseEvents
        if path == "/v1/responses":
            events = ResponseEvents(f"resp_{record.number}", tells_usage=reply.tells_usage)
        else:
            events = ChunkEvents(is_chat="chat" in path, options=fields, tells_usage=reply.tells_usage)
        stream = Stream(sink, events, record, reply, wanted, lambda: self._over(stream))
        self._stream = stream
        if (size := self._house.script.send_buffer) is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
            self._transport.set_write_buffer_limits(0)
        self._house.admit(stream)

    def _drop(self) -> None:
        if self._is_socket and self._house.script.close_code:
            self._transport.write(_framed(8, self._house.script.close_code.to_bytes(2)))
        self._transport.close()

    def _over(self, stream: Stream) -> None:
        self._stream = None
        self._house.release(stream)

    def _refuse(self, sink: Sink, status: int, code: str) -> None:
        error = {"message": "as scripted", "type": "invalid_request_error", "code": code}
        if isinstance(sink, HttpSink):
            self._answer(status, {"error": error})
        else:
            sink.write([json.dumps({"type": "error", "status": status, "error": error}).encode()])

    def _prompt(self, path: str, body: Json, number: int, num_tokens: int) -> tuple[str, int]:
        """The new text, and the tokens of all. A history has the answer that is to come."""
        script, house = self._house.script, self._house
        if path == "/v1/completions":
            return body["prompt"], 1 + len(house.tokenizer.ids(body["prompt"]))
        given = body["messages"] if path == "/v1/chat/completions" else body["input"]
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
        history = house.histories.get(body.get("previous_response_id") or "", [])
        whole = [*history, *messages]
        house.histories[f"resp_{number}"] = [*whole, {"role": "assistant", "content": " so" * num_tokens}]
        turns = sum(message["role"] == "user" for message in whole)
        words = sum(len(house.tokenizer.ids(_content(message))) for message in whole)
        return _content(messages[-1]), words + script.first_cost + (turns - 1) * script.later_cost


def _content(message: Json) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def main() -> None:
    house = House(msgspec.json.decode(sys.stdin.buffer.readline(), type=Script))
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    server = await loop.create_server(lambda: Peer(house), "127.0.0.1", 0, backlog=4096)
    loop.add_reader(sys.stdin.fileno(), stop.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
