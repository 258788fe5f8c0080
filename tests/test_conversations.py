"""Conversations over HTTP whose clients leave: what they leave behind, and what the next turn gets.

A real server, ``--deterministic``, so that a disturbed conversation and an undisturbed one have the same text
to the letter. The two use different keys and therefore share no block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.support.server import Server, running_server

pytestmark = pytest.mark.timeout(300)
MANY = 400 if os.environ.get("TIDEGATE_SLOW") == "1" else 20
SMALL = ("--deterministic", "--device-kv", "16MiB", "--max-model-len", "256")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(*SMALL, "--api-key", "disturbed", "--api-key", "undisturbed") as server:
        yield server
        assert server.stop() == 0


def client_of(server: Server, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def turn(client: OpenAI, messages: list[dict[str, str]]) -> tuple[str, int]:
    """The answer to a history, and how many tokens the model saw."""
    options: dict[str, Any] = {"model": "SmolLM2-135M-Instruct", "temperature": 0, "max_tokens": 16}
    answer = client.chat.completions.create(messages=messages, **options)  # type: ignore[call-overload]
    return answer.choices[0].message.content, answer.usage.prompt_tokens


def leave(client: OpenAI, messages: list[dict[str, str]], num_chunks: int) -> None:
    """Begin a turn and go away after so many chunks."""
    options: dict[str, Any] = {"model": "SmolLM2-135M-Instruct", "temperature": 0, "max_tokens": 150}
    stream = client.chat.completions.create(messages=messages, stream=True, **options)  # type: ignore[call-overload]
    for _, _ in zip(range(num_chunks), stream, strict=False):
        pass
    stream.close()


def check_counts(server: Server) -> None:
    report = server.wait_idle()
    assert report["problems"] == []
    assert report["stats"]["blocks_in_use"] == 0


@pytest.mark.case("E6")
@pytest.mark.parametrize("num_chunks", [0, 1, 12])
def test_a_turn_that_its_client_left_has_no_part_in_the_next(server: Server, num_chunks: int) -> None:
    first = [user(f"Tell me a story about {num_chunks + 2} foxes and a very old, very tired lion.")]
    found = {}
    for key in ("disturbed", "undisturbed"):
        with client_of(server, key) as client:
            if key == "disturbed":
                leave(client, first, num_chunks)
            second_text, second_tokens = turn(client, first)
            history = [*first, {"role": "assistant", "content": second_text}, user("And then?")]
            found[key] = (second_text, second_tokens, *turn(client, history))
    assert found["disturbed"] == found["undisturbed"]
    assert found["disturbed"][0]
    check_counts(server)


@pytest.mark.case("E9")
def test_conversations_without_end_whose_clients_leave_cost_nothing(server: Server) -> None:
    """Together they are more than the pool has room for."""
    question = [user("What is the capital of France?")]
    with client_of(server, "undisturbed") as client:
        before = turn(client, question)
    with client_of(server, "disturbed") as client:
        for number in range(MANY):
            leave(client, [user(f"Conversation {number}: " + f"word{number} " * 12)], 1 + number % 3)
    check_counts(server)
    with client_of(server, "undisturbed") as client:
        assert turn(client, question) == before
    check_counts(server)
    assert server.get("/health")[0] == 200


def leave_response(client: OpenAI, number: int, store: bool) -> str:
    """Begin a session that wants to be kept for a week, go away in its midst, and tell its id."""
    stream = client.responses.create(
        model="SmolLM2-135M-Instruct", input=f"Session {number}: " + f"word{number} " * 12, stream=True,
        max_output_tokens=12 if store else 150, store=store, prompt_cache_key=f"session-{number}",
        extra_body={"prompt_cache_options": {"ttl": "7d"}},
    )  # fmt: skip
    events = [event for event, _ in zip(stream, range(1 + number % 4), strict=False)]
    stream.close()
    assert events[0].type == "response.created"
    return events[0].response.id


@pytest.mark.case("E9")
@pytest.mark.parametrize("store", [True, False])
def test_sessions_without_end_whose_clients_leave_cost_nothing(server: Server, store: bool) -> None:
    """Those that are stored are answered all the same, and can be gone on from."""
    options: dict[str, Any] = {"model": "SmolLM2-135M-Instruct", "temperature": 0, "max_output_tokens": 8}
    with client_of(server, "undisturbed") as client:
        before = client.responses.create(input="What is the capital of France?", **options)
    with client_of(server, "disturbed") as client:
        ids = [leave_response(client, number, store) for number in range(MANY // 2)]
        check_counts(server)
        if store:
            assert {client.responses.retrieve(each).status for each in ids} <= {"completed", "incomplete"}
            later = client.responses.create(input="And then?", previous_response_id=ids[0], **options)
            assert later.output_text
    with client_of(server, "undisturbed") as client:
        after = client.responses.create(input="What is the capital of France?", **options)
    assert after.output_text == before.output_text
    check_counts(server)
    assert server.get("/health")[0] == 200
