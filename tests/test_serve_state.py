"""A real server with ``--state``, killed with SIGKILL and started again on the same file."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.support.server import free_port, running_server

KEYS = ("--api-key", "mine", "--api-key", "theirs")
SWAPPED = ("--api-key", "theirs", "--api-key", "mine")
MODEL = ("--device-kv", "64MiB", "--max-model-len", "1024")


def client_of(url: str, key: str = "mine") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def serve_to_the_end(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(free_port()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.timeout(240)
def test_what_was_said_survives_the_death_of_the_server(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "state"))
    with running_server(*MODEL, *KEYS, *state) as server, client_of(server.url) as client:
        conversation = client.conversations.create(items=[{"role": "user", "content": "Remember the tide."}])
        first = client.responses.create(input="Hello", conversation=conversation.id, max_output_tokens=8)
        second = client.responses.create(input="And?", previous_response_id=first.id, max_output_tokens=8)
        running = client.responses.create(
            input="Go on.", background=True, max_output_tokens=900, extra_body={"ignore_eos": True}
        )
        again = serve_to_the_end(*state)
        assert (again.returncode, again.stdout) == (2, "")
        assert "in use by another server" in again.stderr
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(30)
    with running_server(*MODEL, *SWAPPED, *state) as server, client_of(server.url) as client:
        assert client.responses.retrieve(second.id).output == second.output
        assert client.responses.retrieve(running.id).status == "failed"
        third = client.responses.create(input="So?", previous_response_id=second.id, max_output_tokens=8)
        given = [item.id for item in client.responses.input_items.list(third.id, order="asc")]
        said = [item.id for item in client.conversations.items.list(conversation.id, order="asc")]
        assert len(said) == 3  # and what was said in the response
        assert given[:3] == said
        assert len(given) == 6
        with client_of(server.url, "theirs") as other:
            for call in (
                lambda: other.responses.retrieve(second.id),
                lambda: other.conversations.retrieve(conversation.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    call()
        assert server.stop() == 0, server.log


def test_a_file_that_cannot_be_used_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    refused = serve_to_the_end("--state", str(tmp_path / "text"))
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1].startswith("tidegate: The state file")
    assert "Traceback" not in refused.stderr
