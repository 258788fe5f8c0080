"""What clients can do to a server to hold up the streams of others: each is a call that takes a port.

Blocking; runs in the benchmark's own process, which measures nothing meanwhile. A disturbance raises
RuntimeError when the server does not answer as it should.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping

Disturbance = Callable[[int], None]
GIANT_BYTES = 64 * 2**20
LARGEST_BYTES = 8 * 2**20  # that the gateway reads
PROMPT_TOKENS = 256 * 1024
NUM_CLIENTS = 1000
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"


def _head(path: str, *more: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: disturb", "Content-Type: application/json", *more, "", "")
    return "\r\n".join(lines).encode()


def _request(path: str, body: bytes) -> bytes:
    return _head(path, f"Content-Length: {len(body)}") + body


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=120)


def _send(port: int, parts: Iterator[bytes], *expected: int) -> None:
    """Send until the server stops reading, and check the status of its answer."""
    with _connect(port) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it may close while we still send
            answer = connection.recv(4096)
        status = int(answer.split()[1]) if answer else 0
        if status not in expected:
            raise RuntimeError(f"expected {expected}: {answer[:300]!r}")


def giant_body(port: int) -> None:
    """64 MiB, announced by Content-Length and sent all the same."""

    def parts() -> Iterator[bytes]:
        yield _head(_COMPLETIONS, f"Content-Length: {GIANT_BYTES}")
        for _ in range(GIANT_BYTES // 2**16):
            yield b" " * 2**16

    _send(port, parts(), 413, 0)


def giant_chunked_body(port: int) -> None:
    """64 MiB in chunks, so that only reading tells how much it is."""

    def parts() -> Iterator[bytes]:
        yield _head(_COMPLETIONS, "Transfer-Encoding: chunked")
        for _ in range(GIANT_BYTES // 2**16):
            yield b"10000\r\n" + b" " * 2**16 + b"\r\n"

    _send(port, parts(), 413, 0)


def giant_compressed_body(port: int) -> None:
    """64 MiB that are 64 KiB on the wire."""
    packed = zlib.compress(b" " * GIANT_BYTES)

    def parts() -> Iterator[bytes]:
        yield _head(_COMPLETIONS, "Content-Encoding: deflate", f"Content-Length: {len(packed)}") + packed

    _send(port, parts(), 413, 0)


def body_of_many_parts(port: int) -> None:
    """The largest body that is read at all, made of as many values as fit."""
    body = b'{"prompt":"x","metadata":[' + b"[]," * ((LARGEST_BYTES - 64) // 3) + b"1]}"
    _send(port, iter([_request(_COMPLETIONS, body)]), 200, 400)


def body_of_many_pairs(port: int) -> None:
    """The same of metadata, which is an object of strings."""
    pairs = b",".join(b'"%d":""' % number for number in range(600_000))
    _send(port, iter([_request(_COMPLETIONS, b'{"prompt":"x","metadata":{' + pairs + b"}}")]), 400)


def body_of_many_texts(port: int) -> None:
    """The same of prompts, each of them empty."""
    body = b'{"prompt":[' + b'"",' * ((LARGEST_BYTES - 64) // 3) + b'""]}'
    _send(port, iter([_request(_COMPLETIONS, body)]), 400)


def body_of_long_numbers(port: int) -> None:
    """The largest numbers that Python reads, which takes it the square of their length."""
    body = b'{"prompt":[' + (b"1" * 4299 + b",") * ((LARGEST_BYTES - 64) // 4300) + b"1]}"
    _send(port, iter([_request(_COMPLETIONS, body)]), 400)


def many_tokens_to_text(port: int) -> None:
    """As many token ids for ``/detokenize`` as a body can have: more than values, and than the window."""
    for number, status in (((LARGEST_BYTES - 64) // 2, 400), (500_000, 400), (PROMPT_TOKENS, 200)):
        _send(port, iter([_request("/detokenize", b'{"tokens":[' + b"9," * number + b"9]}")]), status)


def _ask(port: int, path: str, **fields: object) -> None:
    body = json.dumps({"max_tokens": 1, **fields}).encode()
    _send(port, iter([_request(path, body)]), 200)


def giant_prompt(port: int) -> None:
    """A prompt of 256k tokens, as text."""
    _ask(port, _COMPLETIONS, prompt=" word" * PROMPT_TOKENS)


def giant_prompt_of_ids(port: int) -> None:
    """A prompt of 256k tokens, as token ids."""
    _ask(port, _COMPLETIONS, prompt=[1194] * PROMPT_TOKENS)


def giant_chat(port: int) -> None:
    """A conversation of 256k tokens in 2,048 messages, through the template."""
    message = {"role": "user", "content": " word" * (PROMPT_TOKENS // 2048)}
    _ask(port, _CHAT, messages=[message] * 2048)


def slow_schema(port: int) -> None:
    """A schema that takes seconds to compile where schemas are supported, and is read in any case."""
    leaf = {"type": "string", "pattern": "(a|b){1,40}c?"}
    properties = {
        f"field_{i}": {"type": "object", "properties": {f"f{j}": leaf for j in range(20)}} for i in range(150)
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    wanted = {"type": "json_schema", "json_schema": {"name": "slow", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "response_format": wanted}
    _send(port, iter([_request(_CHAT, json.dumps(body).encode())]), 200, 400)


@contextlib.contextmanager
def many_clients(port: int, number: int = NUM_CLIENTS) -> Iterator[None]:
    """Streams that are open at once; leaving the scope closes them in the same moment."""
    body = json.dumps({"prompt": "Hi", "stream": True, "max_tokens": 100_000}).encode()
    request = _request(_COMPLETIONS, body)
    clients, others = [], _num_requests(port)
    try:
        for _ in range(number):
            clients.append(_connect(port))
            clients[-1].sendall(request)
        _wait_for_requests(port, others + number)
        yield
    finally:
        for client in clients:
            client.close()


def _wait_for_requests(port: int, number: int) -> None:
    """Until so many are in the engine."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if _num_requests(port) >= number:
            return
        time.sleep(0.05)
    raise RuntimeError("the server does not take in so many requests")


def _num_requests(port: int) -> int:
    """Running and waiting in the engine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        metrics = response.read().decode()
    counts = re.findall(r"^tidegate_requests_(?:running|waiting) (\S+)", metrics, re.MULTILINE)
    return round(sum(map(float, counts)))


DISTURBANCES: Mapping[str, Disturbance] = {
    "64 MiB body": giant_body,
    "64 MiB body, chunked": giant_chunked_body,
    "64 MiB body, compressed": giant_compressed_body,
    "8 MiB body of empty lists": body_of_many_parts,
    "8 MiB body of pairs": body_of_many_pairs,
    "8 MiB body of empty texts": body_of_many_texts,
    "8 MiB body of long numbers": body_of_long_numbers,
    "8 MiB of token ids to text": many_tokens_to_text,
    "256k-token prompt": giant_prompt,
    "256k-token prompt of ids": giant_prompt_of_ids,
    "256k-token chat": giant_chat,
    "schema that compiles for long": slow_schema,
}
