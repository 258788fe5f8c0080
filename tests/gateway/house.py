"""A whole gateway on a real socket with a scripted engine behind it, and ways to talk to it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from engine.messages import AddRequest, EngineInfo
from engine.restarts import RestartPlan
from engine.scripted import Script, ScriptedEngine
from engine.supervisor import OnProgress, SupervisedEngine
from gateway.app import running_site
from gateway.listeners import base_url, bound_listeners
from gateway.state import Gateway, GatewaySettings, open_gateway

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] + '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IM_END = 266
TOOL = 267


def text_ids(text: str) -> list[int]:
    """Ids of the tiny byte-level tokenizer: one per byte."""
    return list(text.encode())


def engine_info(tokenizer_dir: str, **fields: Any) -> EngineInfo:
    known: dict[str, Any] = {
        "model_name": "tiny", "architecture": "LlamaForCausalLM", "device": "cpu", "dtype": "float32",
        "num_parameters": 1, "vocab_size": 300, "max_model_len": 256, "block_size": 16, "num_blocks": 64,
        "kv_bytes": 1, "weight_bytes": 1, "memory_total_bytes": 1, "memory_available_bytes": 1, "threads": 1,
        "attention_backend": "reference",
        "tokenizer_dir": tokenizer_dir, "chat_template": TEMPLATE, "bos_token": None,
        "eos_token": "<|im_end|>", "stop_token_ids": (IM_END,),
    }  # fmt: skip
    return EngineInfo(**{**known, **fields})


@dataclass(slots=True)
class Reply:
    """An answer that was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert len(self.body) < 1000
        return dict(error)

    @property
    def is_stream(self) -> bool:
        return self.headers["content-type"].startswith("text/event-stream")

    @property
    def events(self) -> list[Any]:
        """Payloads of an event stream; the end marker must be there, once, last."""
        data = [block[6:] for block in self.body.decode().split("\n\n") if block.startswith("data: ")]
        assert data.count("[DONE]") == 1
        assert data[-1] == "[DONE]"
        return [json.loads(payload) for payload in data[:-1]]

    @property
    def text(self) -> str:
        """All the text of a streamed or plain answer of either endpoint."""
        parts = self.events if self.is_stream else [self.json]
        return "".join(_choice_text(choice) for part in parts for choice in part["choices"])

    @property
    def finish_reasons(self) -> list[str | None]:
        return [choice["finish_reason"] for event in self.events for choice in event["choices"]]


def _choice_text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    part = choice.get("delta") or choice.get("message") or {}
    return str(part.get("content") or "")


@dataclass(slots=True)
class House:
    """One running gateway. Engines start only while ``may_start`` is set, as it is at first."""

    engines: list[ScriptedEngine]
    may_start: asyncio.Event
    gateway: Gateway
    url: str
    session: aiohttp.ClientSession
    stack: AsyncExitStack
    scripts: list[Script] = field(default_factory=list)
    closed: bool = False

    @property
    def engine(self) -> ScriptedEngine:
        """The present one."""
        return self.engines[-1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def request(self, method: str, path: str, **options: Any) -> Reply:
        async with self.session.request(method, self.url + path, **options) as response:
            body = await response.read()
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, body)

    async def complete(self, *, headers: dict[str, str] | None = None, **body: Any) -> Reply:
        body.setdefault("prompt", "Hi")
        body.setdefault("max_tokens", 200)
        return await self.request("POST", "/v1/completions", json=body, headers=headers)

    async def chat(self, *, headers: dict[str, str] | None = None, **body: Any) -> Reply:
        body.setdefault("messages", [{"role": "user", "content": "Hi"}])
        return await self.request("POST", "/v1/chat/completions", json=body, headers=headers)

    def script(self, *scripts: Script) -> None:
        """What the next requests get, in order."""
        self.scripts.extend(scripts)

    def say(self, ids: Sequence[int], **fields: Any) -> None:
        """The next request gets these tokens and an end-of-text token."""
        self.script(Script(token_ids=tuple(ids), stop_token_id=IM_END, **fields))

    async def idle(self) -> None:
        """Wait until neither side holds anything."""
        async with asyncio.timeout(10):
            while (
                self.engine.request_ids
                or self.gateway.admission.in_flight
                or self.gateway.bodies.total_bytes
                or len(self.gateway.streams)
            ):
                await asyncio.sleep(0.005)

    async def check_alive(self) -> None:
        """What must hold after every case."""
        await self.idle()
        self.scripts.clear()
        assert (await self.request("GET", "/health")).status == 200
        reply = await self.complete(prompt="again")
        assert reply.status == 200, reply.body
        assert reply.text == "ok"
        await self.idle()
        assert self.engine.stats.blocks_in_use == 0
        assert self.gateway.offload.pending == 0

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self.stack.aclose()


async def open_house(
    tokenizer_dir: str,
    *,
    info: dict[str, Any] | None = None,
    step_s: float = 0.0,
    engine_seqs: int = 64,
    engine_restarts: int = 0,
    tls: ssl.SSLContext | None = None,
    trust: ssl.SSLContext | bool = True,
    **settings: Any,
) -> House:
    """Start a gateway on a free port. ``settings`` are GatewaySettings', ``trust`` is the client's."""
    async with AsyncExitStack() as stack:
        scripts: list[Script] = []

        def next_script(request: AddRequest) -> Script:
            return scripts.pop(0) if scripts else Script(token_ids=text_ids("ok"), stop_token_id=IM_END)

        made = engine_info(**{"tokenizer_dir": tokenizer_dir, **(info or {})})
        engines: list[ScriptedEngine] = []
        may_start = asyncio.Event()
        may_start.set()

        async def start_engine(*, on_progress: OnProgress) -> ScriptedEngine:
            await may_start.wait()
            engines.append(ScriptedEngine(made, next_script, step_s=step_s, max_num_seqs=engine_seqs))
            return engines[-1]

        engine = await SupervisedEngine.start(start_engine, RestartPlan(engine_restarts))
        stack.push_async_callback(engine.close)
        gateway = await open_gateway(engine, GatewaySettings(port=0, **settings))
        stack.push_async_callback(gateway.close)
        listeners = stack.enter_context(bound_listeners("127.0.0.1", 0, gateway.settings.send_buffer_bytes))
        await stack.enter_async_context(running_site(gateway, listeners, tls))
        url = base_url(listeners, "http" if tls is None else "https")
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=trust))
        )
        return House(engines, may_start, gateway, url, session, stack.pop_all(), scripts)
    raise AssertionError("unreachable")


class RawClient:
    """A client on a bare socket, for what well-behaved ones never do."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""

    async def send_json(self, path: str, body: dict[str, Any], **headers: str) -> None:
        payload = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(payload)}", "", ""]
        await self.send("\r\n".join(lines).encode() + payload)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    def reset(self) -> None:
        """Closing will be a reset instead of an orderly end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def read_until(self, mark: bytes, timeout_s: float = 10) -> bytes:
        """Everything received so far, once ``mark`` is in it."""
        async with asyncio.timeout(timeout_s):
            while mark not in self.received:
                chunk = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
                if not chunk:
                    raise ConnectionResetError(f"closed before {mark!r}: {self.received[-200:]!r}")
                self.received += chunk
        return self.received

    async def read_to_end(self, timeout_s: float = 10) -> bytes:
        async with asyncio.timeout(timeout_s):
            while chunk := await asyncio.get_running_loop().sock_recv(self.sock, 65536):
                self.received += chunk
        return self.received


@asynccontextmanager
async def raw_client(house: House, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    with sock:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", house.port))
        yield RawClient(sock)


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait for something that the test is about to rely on."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)
