"""A real server's keys, certificate and settings, from outside: what is served, refused and logged."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificate, make_certificate
from tests.support.server import ADMIN_KEY, Server, running_server

pytestmark = pytest.mark.timeout(300)
SMALL = ("--device-kv", "128MiB", "--max-model-len", "1024")
KEYS = {"first": "sk-first-5e3a91", "second": "sk-second-77c0de", "wrong": "sk-wrong-0badf00d"}
PASSWORD = "open-sesame-1f2e"
PROMPT, RARE = "The heron said xylograph", "xylograph"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificates"), "server", PASSWORD)


@pytest.fixture(scope="module")
def server(certificate: Certificate) -> Iterator[Server]:
    """With everything on. The admin key is on the command line, other secrets are in the environment."""
    arguments = ["--ssl-certfile", certificate.certfile, "--ssl-keyfile", certificate.keyfile]
    arguments += [
        "--cors-origin",
        "https://chat.example",
        "--keepalive-timeout",
        "75",
        "--log-level",
        "debug",
    ]
    env = {"TIDEGATE_API_KEY": f"{KEYS['first']} {KEYS['second']}", "TIDEGATE_SSL_KEYFILE_PASSWORD": PASSWORD}
    with running_server(*SMALL, *arguments, env=env, trust=certificate.trust) as server:
        yield server


def ask(server: Server, key: str, path: str = "/v1/completions", **fields: object) -> tuple[int, str, str]:
    """Status, headers and body."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": 4, **fields}).encode()
    headers = {"Content-Type": "application/json", "Origin": "https://chat.example"}
    headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(server.url + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60, context=server.trust) as response:
            return response.status, str(response.headers), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, str(error.headers), error.read().decode()


def test_keys_open_what_they_are_for_and_nothing_else(server: Server) -> None:
    for key, status in ((KEYS["first"], 200), (KEYS["second"], 200), (KEYS["wrong"], 401), (ADMIN_KEY, 401)):
        assert ask(server, key)[0] == status, key
    for path in ("/debug/kv", "/debug/integrity"):
        for key, status in ((ADMIN_KEY, 200), (KEYS["first"], 401), (KEYS["wrong"], 401), ("", 401)):
            assert server.get(path, Authorization=f"Bearer {key}")[0] == status


def test_streams_come_over_tls_and_pages_may_read_them(server: Server) -> None:
    status, headers, text = ask(server, KEYS["first"], stream=True)
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    assert "Access-Control-Allow-Origin: https://chat.example" in headers
    assert f"serving SmolLM2-135M-Instruct on https://127.0.0.1:{server.port}" in server.log


def test_neither_keys_nor_texts_are_shown_or_logged_anywhere(server: Server) -> None:
    shown = [server.get("/metrics")[1].decode(), server.get("/health")[1].decode()]
    for key in (*KEYS.values(), ADMIN_KEY, PASSWORD):
        for fields in ({}, {"stream": True}, {"n": 0}, {"model": "other"}, {"temperature": "hot"}, {"x": 1}):
            status, headers, body = ask(server, key, **fields)
            shown += [headers] if status == 200 else [headers, body]
        shown += [*ask(server, key, "/nowhere")[1:], *ask(server, key, "/debug/kv")[1:]]
        shown.append(server.get(f"/v1/models/{key}", Authorization=f"Bearer {key}")[1].decode())
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.sendall(f"GET / HTTP/1.1\r\nAuthorization: Bearer {KEYS['first']}\r\n\r\n".encode())
        shown.append(plain.recv(65536).decode("latin-1"))
    shown += [server.get("/metrics")[1].decode(), server.log]
    for secret in (*KEYS.values(), ADMIN_KEY, PASSWORD, RARE):
        assert not [text for text in shown if secret in text], secret


def test_a_hang_up_signal_reads_the_certificate_again(server: Server, tmp_path: Path) -> None:
    """The last test of this server: its old certificate is gone afterwards."""
    certificate_path = server_argument(server, "--ssl-certfile")
    old = Path(certificate_path).read_text()
    Path(certificate_path).write_text("junk")
    server.process.send_signal(signal.SIGHUP)
    wait_for(server, "the certificate stays as it was")
    assert ask(server, KEYS["first"])[0] == 200
    new = make_certificate(tmp_path, "new", PASSWORD)
    os.replace(new.keyfile, server_argument(server, "--ssl-keyfile"))
    os.replace(new.certfile, certificate_path)
    assert Path(certificate_path).read_text() != old
    server.process.send_signal(signal.SIGHUP)
    wait_for(server, "the certificate was read again")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(server, KEYS["first"])
    server.trust = Certificate(certificate_path, "").trust
    assert ask(server, KEYS["first"])[0] == 200
    assert server.stop() == 0


def server_argument(server: Server, name: str) -> str:
    arguments = server.process.args
    assert isinstance(arguments, list)
    return str(arguments[arguments.index(name) + 1])


def wait_for(server: Server, text: str) -> None:
    for _ in range(1000):
        if text in server.log:
            return
        threading.Event().wait(0.01)
    raise AssertionError(server.log)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--ssl-certfile", "/no/such/cert"), "/no/such/cert"),
        (("--ssl-keyfile", "/no/such/key"), "--ssl-certfile"),
        (("--cors-origin", "chat.example"), "https://"),
        (("--max-connections", "0"), "--max-connections"),
        (("--header-timeout", "0"), "--header-timeout"),
        (("--keepalive-timeout", "nan"), "--keepalive-timeout"),
    ],
)
def test_a_wrong_setting_ends_before_the_engine_loads(arguments: tuple[str, ...], part: str) -> None:
    """The model does not exist either, which only the engine would find."""
    result = tidegate("serve", "/no/such/model", *arguments)
    assert result.returncode == 2
    assert part in result.stderr
    assert "/no/such/model" not in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_says_which_protocol_and_finds_a_bad_certificate(certificate: Certificate) -> None:
    result = tidegate("doctor", "/no/such/model", "--ssl-certfile", certificate.certfile)
    assert result.returncode == 2
    assert "no private key" in result.stderr.replace("\n", " ")
    assert "protocol" in tidegate("doctor", "/no/such/model").stdout


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "gateway.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
