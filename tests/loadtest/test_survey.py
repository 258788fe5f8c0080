"""What is found out about a server before it is measured."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.scripted_openai import Reply, Script, ScriptedServer, scripted_openai
from loadtest.drivers.apis import Options
from loadtest.drivers.base import ServerUnreachableError
from loadtest.drivers.survey import survey
from loadtest.drivers.target import ApiName, Target, TransportName
from loadtest.drivers.vocabulary import COMMON, VocabularyError
from tests.loadtest.test_driver import WAYS


@pytest.fixture(scope="module")
def process() -> Iterator[ScriptedServer]:
    with scripted_openai() as server:
        yield server


def whole_words(path: Path, words: Sequence[str]) -> Path:
    """A tokenizer that has these words whole, with a space in front and without, and all else in bytes."""
    texts = [*pre_tokenizers.ByteLevel.alphabet(), *words, *(f"\u0120{word}" for word in words)]
    vocab = {text: id for id, text in enumerate(dict.fromkeys(texts))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
    return path


def target(server: ScriptedServer, way: tuple[ApiName, TransportName] = ("chat", "sse")) -> Target:
    return Target(server.url, api=way[0], transport=way[1])


@pytest.mark.parametrize(
    ("kind", "told", "version"),
    [
        ("tidegate", "tidegate", "1.2.3"),
        ("vllm", "vllm", "1.2.3"),
        ("llamacpp", "llama.cpp", "b123"),
        ("other", "unknown", "1.2.3"),
    ],
)
async def test_who_the_server_is_and_what_its_words_are(
    process: ScriptedServer, kind: str, told: str, version: str
) -> None:
    process.rewrite(Script(kind=kind, window=2048))  # type: ignore[arg-type]
    found = await survey(target(process))
    server = found.server
    assert (server.kind, server.version, server.model, server.max_model_len) == (
        told,
        version,
        "scripted",
        2048,
    )
    assert found.target.model == "scripted"
    assert server.words_verified and server.token_words == len(found.words.words) >= 400
    assert found.notes == []


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_template_adds_is_measured(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(first_cost=31, later_cost=7))
    found = await survey(target(process, way))
    cost = (found.cost.first, found.cost.later)
    assert cost == ((1, 0) if way[0] == "completions" else (31, 7))
    assert found.options.keeps_responses is (way[0] == "responses")


async def test_words_that_are_two_tokens_are_left_out_also_where_only_usage_tells(
    process: ScriptedServer,
) -> None:
    broken = ["water", "house", COMMON[-1]]
    process.rewrite(Script(has_tokenizer=False, two_tokens=broken))
    found = await survey(target(process))
    assert not found.server.words_verified
    assert set(COMMON) - set(found.words.words) >= set(broken)
    assert len(found.words.words) > 100
    assert found.cost.first == 10


@pytest.mark.parametrize(
    ("script", "options"),
    [
        (
            Script(),
            Options(tells_usage=True, tells_usage_so_far=True, ignores_eos=True),
        ),
        (
            Script(refuses=["continuous_usage_stats", "ignore_eos"]),
            Options(tells_usage=True, keeps_min_tokens=True),
        ),
        (
            Script(ignores=["continuous_usage_stats"], refuses=["ignore_eos", "min_tokens"]),
            Options(tells_usage=True),
        ),
        (
            Script(ignores=["ignore_eos"], stops_after=3),
            Options(tells_usage=True, tells_usage_so_far=True, keeps_min_tokens=True),
        ),
        (
            Script(ignores=["ignore_eos", "min_tokens"], stops_after=3),
            Options(tells_usage=True, tells_usage_so_far=True),
        ),
        (Script(refuses=["stream_options"]), Options(ignores_eos=True)),
        (Script(replies=(Reply(tells_usage=False),)), Options(ignores_eos=True)),
        (
            Script(refuses=["max_tokens"]),
            Options(
                tells_usage=True,
                tells_usage_so_far=True,
                ignores_eos=True,
                length_field="max_completion_tokens",
            ),
        ),
    ],
)
async def test_what_the_server_takes_is_tried_and_a_refusal_is_no_error(
    process: ScriptedServer, script: Script, options: Options
) -> None:
    process.rewrite(script)
    found = await survey(target(process))
    assert found.options == options
    assert found.server.forces_lengths is options.forces_lengths
    assert bool(found.notes) is not options.tells_usage


@pytest.mark.parametrize("fails", [Reply(status=429), Reply(reset_after=0), Reply(status=503)])
async def test_a_failure_is_no_refusal_and_is_asked_again(
    process: ScriptedServer, monkeypatch: pytest.MonkeyPatch, fails: Reply
) -> None:
    monkeypatch.setattr("loadtest.drivers.survey._PAUSES_S", (0.0,))
    process.rewrite(Script(replies=(Reply(), fails)))
    found = await survey(target(process))
    assert found.options == Options(tells_usage=True, tells_usage_so_far=True, ignores_eos=True)
    assert (found.cost.first, found.notes) == (10, [])


async def test_what_cannot_be_found_out_is_said(
    process: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.drivers.survey._PAUSES_S", (0.0,))
    process.rewrite(
        Script(replies=(Reply(), Reply(), *[Reply(status=500, code="broken")] * 4, *[Reply()] * 20))
    )
    found = await survey(target(process))
    assert found.options == Options(tells_usage=True, tells_usage_so_far=True)
    assert [note.partition(" could")[0] for note in found.notes] == [
        "Whether the server takes ignore_eos",
        "Whether the server takes min_tokens",
    ]
    assert "(http 500 broken)" in found.notes[0]


async def test_a_server_that_answers_nothing_is_not_waited_for_as_long_as_an_answer_may_take(
    process: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.drivers.survey._PATIENCE_S", 0.2)
    process.rewrite(Script(replies=(Reply(stall_after=0),)))
    with pytest.raises(ServerUnreachableError, match="timeout"):
        await survey(replace(target(process), timeout_s=3600.0))


async def test_responses_are_found_to_be_kept_also_where_lengths_are_not(process: ScriptedServer) -> None:
    process.rewrite(Script(refuses=["ignore_eos", "min_tokens"]))
    found = await survey(target(process, ("responses", "sse")))
    assert found.options == Options(tells_usage=True, keeps_responses=True)


async def test_a_server_that_keeps_no_responses_is_told_the_history(process: ScriptedServer) -> None:
    process.rewrite(Script(refuses=["previous_response_id"]))
    found = await survey(target(process, ("responses", "sse")))
    assert not found.options.keeps_responses
    assert found.cost.later == 6


async def test_a_server_that_counts_otherwise_than_its_tokenizer_is_noted(
    process: ScriptedServer, tmp_path: Path
) -> None:
    tokenizer = whole_words(tmp_path / "tokenizer.json", COMMON[:60])
    process.rewrite(Script(has_tokenizer=False, two_tokens=list(COMMON[:60])))
    found = await survey(replace(target(process), tokenizer=str(tokenizer)))
    assert found.server.words_verified
    assert "not as long as planned" in found.notes[0]


async def test_a_file_that_is_no_tokenizer_is_refused(process: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(VocabularyError, match="cannot be read"):
        await survey(replace(target(process), tokenizer=str(path)))


async def test_a_server_that_does_not_answer_is_told_from_one_that_refuses(process: ScriptedServer) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ServerUnreachableError, match="Nothing answers"):
            await survey(Target(f"http://127.0.0.1:{bound.getsockname()[1]}"))
    process.rewrite(Script(key="k"))
    with pytest.raises(ServerUnreachableError, match="API key"):
        await survey(target(process))
    process.rewrite(Script(replies=(Reply(status=503, code="overloaded"),)))
    with pytest.raises(ServerUnreachableError, match=r"http 503 overloaded.*names these models: scripted"):
        await survey(target(process))


async def test_a_server_that_sends_elsewhere_gets_the_key_and_nobody_else() -> None:
    asked: list[str] = []

    async def send_elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/elsewhere":
            return web.json_response({"data": [{"id": "another"}]})
        return web.Response(status=307, headers={"location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", send_elsewhere)
    async with TestServer(app) as server:
        there = Target(str(server.make_url("")).rstrip("/"), headers={"x-key": "secret"})
        with pytest.raises(ServerUnreachableError, match="sends clients to /elsewhere"):
            await survey(there)
    assert asked == ["/v1/models"]


async def test_what_speaks_no_http_is_told_from_a_server_that_names_no_model() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ServerUnreachableError, match="not http"):
            await survey(Target(f"http://127.0.0.1:{port}"))
