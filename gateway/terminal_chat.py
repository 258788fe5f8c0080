"""``tidegate chat``: a chat in the terminal against a running server, or one it starts itself.

Synchronous on purpose: one person, one stream; Ctrl-C stops an answer, Ctrl-D ends the chat.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

_HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."


class ChatError(RuntimeError):
    """The server cannot be reached or refused; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to chat, and with which key."""

    url: str
    api_key: str | None = None

    def open(self, method: str, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
        """Send a request and return the response once its status is 200. Raises ChatError."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection = kind(parts.netloc, timeout=600)
            payload = None if body is None else json.dumps(body)
            connection.request(method, parts.path.rstrip("/") + path, payload, headers)
            response = connection.getresponse()
        except OSError as error:
            raise ChatError(f"No server answers at {self.url} ({error}).") from error
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

    def answer(self, model: str, messages: Sequence[dict[str, str]]) -> Generator[str, None, None]:
        """The pieces of the answer as they come. Closing the iterator aborts the request."""
        body = {"model": model, "messages": list(messages), "stream": True}
        with self.open("POST", "/v1/chat/completions", body) as response:
            for line in response:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ChatError(event["error"]["message"])
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""


def _error_message(response: http.client.HTTPResponse) -> str:
    raw = response.read(64 * 1024)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return f"{json.loads(raw)['error']['message']} (status {response.status})"
    return f"The server answered with status {response.status}."


@contextlib.contextmanager
def own_server(arguments: Sequence[str], console: Console) -> Iterator[Server]:
    """Start ``tidegate serve`` on a free port, wait until it is up, and end it afterwards.

    It gets a session of its own, so that Ctrl-C stops an answer and not the server.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-P", "-m", "gateway.cli", "serve", *arguments]
    command += ["--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    server = Server(f"http://127.0.0.1:{port}")
    try:
        while not server.is_up():
            if process.poll() is not None:
                raise ChatError("The server could not start.")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait()


def run_chat(server: Server, console: Console) -> None:
    """Chat until the user leaves."""
    model = server.model()
    console.print(f"[bold]{model}[/bold] at {server.url}. {_HELP}", highlight=False)
    messages: list[dict[str, str]] = []
    while (line := _read_line(console)) is not None:
        if line in ("/quit", "/exit"):
            return
        if line == "/reset":
            messages.clear()
        elif line.startswith("/"):
            console.print(_HELP)
        elif line:
            _take_turn(server, model, messages, line, console)


def _read_line(console: Console) -> str | None:
    try:
        return console.input("[bold green]you>[/bold green] ").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None


def _take_turn(
    server: Server, model: str, messages: list[dict[str, str]], line: str, console: Console
) -> None:
    """One question and its answer; an answer that was stopped or failed stays out of the history."""
    question = {"role": "user", "content": line}
    started, pieces = time.monotonic(), list[str]()
    try:
        with contextlib.closing(server.answer(model, [*messages, question])) as answer:
            for piece in answer:
                console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
                pieces.append(piece)
    except KeyboardInterrupt:
        console.print("\n[dim]stopped; this turn is forgotten[/dim]")
        return
    except ChatError as error:
        console.print(f"\n[red]{error}[/red]", highlight=False)
        return
    messages += [question, {"role": "assistant", "content": "".join(pieces)}]
    seconds = time.monotonic() - started
    console.print(f"\n[dim]{seconds:.1f} s[/dim]", highlight=False)
