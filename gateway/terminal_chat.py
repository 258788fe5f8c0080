"""``tidegate chat``: a chat in the terminal against a running server, or one it starts itself.

Synchronous on purpose: one person, one stream; Ctrl-C stops an answer, Ctrl-D ends the chat.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape

_TIMEOUT_S = 600
_HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."


class ChatError(RuntimeError):
    """The server cannot be reached or refused; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some of an answer, or of the thought before it."""

    text: str
    is_thought: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """Where to chat, and with which key."""

    url: str
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None) -> Server:
        """From what a user types; ``/v1`` at the end is left out. Raises ChatError."""
        parts = urlsplit(url)
        try:
            is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_complete = False
        if not is_complete:
            raise ChatError("The URL must look like http://127.0.0.1:8000.")
        return cls(url.rstrip("/").removesuffix("/v1"), api_key)

    def open(self, method: str, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
        """Send a request and return the response once its status is 200. Raises ChatError."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        payload = None if body is None else json.dumps(body)
        try:
            connection = kind(parts.netloc, timeout=_TIMEOUT_S)
            connection.request(method, parts.path.rstrip("/") + path, payload, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"No usable answer from {self.url}: {error or type(error).__name__}.") from error
        if response.status != 200:
            raise ChatError(_error_message(response))
        return response

    def is_up(self) -> bool:
        try:
            self.open("GET", "/health").close()
        except ChatError:
            return False
        return True

    def model(self) -> str:
        with self.open("GET", "/v1/models") as response:
            return str(json.load(response)["data"][0]["id"])

    def answer(
        self, model: str, messages: Sequence[dict[str, str]], temperature: float | None
    ) -> Generator[Stretch, None, None]:
        """The pieces of the answer as they come. Closing the iterator aborts the request."""
        body: dict[str, Any] = {"model": model, "messages": list(messages), "stream": True}
        if temperature is not None:
            body["temperature"] = temperature
        with self.open("POST", "/v1/chat/completions", body) as response:
            try:
                yield from _pieces(response)
            except (OSError, http.client.HTTPException) as error:
                raise ChatError(f"The answer broke off: {error or type(error).__name__}.") from error


def _pieces(lines: Iterable[bytes]) -> Iterator[Stretch]:
    for line in lines:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise ChatError(event["error"]["message"])
        for choice in event["choices"]:
            delta = choice["delta"]
            yield Stretch(delta.get("reasoning_content") or "", is_thought=True)
            yield Stretch(delta.get("content") or "")


def _error_message(response: http.client.HTTPResponse) -> str:
    raw = response.read(64 * 1024)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return f"{json.loads(raw)['error']['message']} (status {response.status})"
    return f"The server answered with status {response.status}."


@contextlib.contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[Server]:
    """Start ``tidegate serve`` on a free port, wait until it is up, and end it afterwards.

    It gets a session of its own, so that Ctrl-C stops an answer and not the server, and no keys.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-P", "-m", "gateway.cli", "serve", *arguments]
    command += ["--port", str(port), "--log-level", "warning"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    server = Server(f"http://127.0.0.1:{port}")
    with _leaving_on_signals():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, start_new_session=True)
        try:
            while not server.is_up():
                if process.poll() is not None:
                    raise ChatError("The server could not start.")
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that what is open is closed."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: sys.exit(1)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def run_chat(server: Server, console: Console, temperature: float | None) -> None:
    """Chat until the user leaves."""
    chat = _Chat(server, console, temperature)
    while (line := chat.read_line()) is not None:
        if line in ("/quit", "/exit"):
            return
        if line == "/reset":
            chat.messages.clear()
        elif line.startswith("/"):
            console.print(_HELP)
        elif line:
            chat.take_turn(line)


class _Chat:
    """A conversation and the terminal it is held in."""

    def __init__(self, server: Server, console: Console, temperature: float | None) -> None:
        self._server = server
        self._console = console
        self._temperature = temperature
        self._is_thinking = False
        self._model = server.model()
        self.messages: list[dict[str, str]] = []
        console.print(f"[bold]{escape(self._model)}[/bold] at {escape(server.url)}. {_HELP}")

    def read_line(self) -> str | None:
        """What the user types; None at the end."""
        try:
            return self._console.input("[bold green]you>[/bold green] ").strip()
        except (EOFError, KeyboardInterrupt):
            self._console.print()
            return None

    def take_turn(self, line: str) -> None:
        """One question and its answer; an answer that was stopped or failed stays out of the history."""
        question = {"role": "user", "content": line}
        started, said = time.monotonic(), list[str]()
        answer = self._server.answer(self._model, [*self.messages, question], self._temperature)
        try:
            with contextlib.closing(answer):
                for piece in answer:
                    self._show(piece)
                    if not piece.is_thought:
                        said.append(piece.text)
        except KeyboardInterrupt:
            self._console.print("\n[dim]stopped; this turn is forgotten[/dim]")
            return
        except ChatError as error:
            self._console.print(f"\n[red]{escape(str(error))}[/red]")
            return
        self.messages += [question, {"role": "assistant", "content": "".join(said)}]
        self._console.print(f"\n[dim]{time.monotonic() - started:.1f} s[/dim]")

    def _show(self, piece: Stretch) -> None:
        if self._is_thinking and not piece.is_thought and piece.text:
            self._console.print("\n")
        if piece.text:
            self._is_thinking = piece.is_thought
        style = "dim" if piece.is_thought else None
        self._console.print(piece.text, end="", style=style, markup=False, highlight=False, soft_wrap=True)
