"""/openapi.json against a real server: schemathesis drives it within what it says, beyond it, at its bounds.

No answer is a 5xx, and none has a status, body, content type or header that the document does not give; every
answer is also one that the official client's own models take. Most bodies are made to agree with themselves
(``settle``), so that tokens are generated for them; how many is asserted, lest this test only refusals.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gateway.openai.responses.events import AnyEvent
from tests.support.bodies import bound, settle
from tests.support.openai_models import (
    check_answer,
    check_chunk,
    check_conversation,
    check_event,
    check_items,
    check_probe,
    check_response,
)
from tests.support.response_bodies import bound_response, settle_response
from tests.support.server import ADMIN_KEY, Server, running_server

KEY = "sk-test"
SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
CHATS, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
POSTS = (CHATS, COMPLETIONS, RESPONSES, "/tokenize", "/detokenize")
CONVERSATIONS = (
    ("POST", ""), ("GET", "/{id}"), ("POST", "/{id}"), ("POST", "/{id}/items"), ("GET", "/{id}/items"),
    ("GET", "/{id}/items/{item_id}"), ("DELETE", "/{id}/items/{item_id}"), ("DELETE", "/{id}"),
)  # fmt: skip
KEPT = (
    ("GET", "/v1/responses/{id}"), ("GET", "/v1/responses/{id}/input_items"),
    ("POST", "/v1/responses/{id}/cancel"), ("DELETE", "/v1/responses/{id}"),
)  # fmt: skip
GETS = (
    "/v1/models", "/v1/models/{name}", "/health", "/metrics", "/version", "/openapi.json",
    "/debug/kv", "/debug/integrity",
)  # fmt: skip
EXAMPLES = 2000 if SLOW else 20
STRIDE = 1 if SLOW else 12  # of the cases at the bounds that make tokens, each so many-th is sent
MIN_SHARE_OF_200 = 0.85  # of settled bodies; measured: 0.95 (chat) to 1. The rest are too long for the window
# A body can be well-formed and yet be refused: 'best_of' below 'n', a prompt longer than the window ...
NOT_PROMISED = [positive_data_acceptance]

pytestmark = pytest.mark.timeout(7200 if SLOW else 300)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    flags = ["--api-key", KEY, "--device-kv", "64MiB", "--max-model-len", "1024", "--max-num-seqs", "4"]
    with running_server(*flags) as server:
        yield server
        report = server.wait_idle()
        assert report["problems"] == []
        assert report["stats"]["blocks_in_use"] == 0
        assert "Traceback" not in server.log
        assert server.stop() == 0, server.log


class Prober:
    """Sends cases and holds every answer against the document. ``statuses`` counts the answers.

    ``kept``: ids of responses that another turn can go on from; ``num_continued``: how many did.
    """

    def __init__(self, server: Server) -> None:
        self.kept: list[str] = []
        self.num_continued = 0
        self._url = server.url
        self.schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
        self.document: dict[str, Any] = self.schema.raw_schema
        self.statuses: Counter[int] = Counter()
        self._session = requests.Session()
        self._events = [self._validator(event.__name__) for event in get_args(AnyEvent)]

    def operation(self, method: str, path: str) -> Any:
        return self.schema[path][method]

    def at_the_bounds(self, method: str, path: str) -> Iterator[Case]:
        """Each field left out, null, at and beyond its bounds, of another type; other methods and types."""
        operation = self.operation(method, path)
        config = self.schema.config.generation_for(operation=operation, phase="coverage")
        cases: Iterator[Case] = self.schema.iter_coverage_cases(
            operation, generation_modes=list(GenerationMode), generation_config=config
        )
        return cases

    def ask(self, case: Case) -> int:
        key = _headers(case.path)
        if "Authorization" in case.headers:  # schemathesis leaves it out to see that it is needed
            case.headers.update(key)
        answer = case.call(session=self._session, timeout=120)
        case.validate_response(answer, headers=key, excluded_checks=NOT_PROMISED)
        if answer.status_code == 200:
            self._check_success(case.path, answer)
        self.statuses[answer.status_code] += 1
        status: int = answer.status_code
        return status

    def make_response(self, **fields: Any) -> str:
        """The id of a new one."""
        body = {"input": "Hi", "max_output_tokens": 2, **fields}
        answer = self._session.post(
            self._url + RESPONSES, json=body, headers=_headers(RESPONSES), timeout=120
        )
        assert answer.status_code == 200, answer.text
        response_id: str = answer.json()["id"]
        return response_id

    def _check_success(self, path: str, answer: Any) -> None:
        if answer.headers["content-type"][0].startswith("text/event-stream"):
            text = answer.content.decode()
            assert text.endswith("\n\n")
            blocks = [block for block in text.split("\n\n")[:-1] if not block.startswith(":")]
            check = self._check_events if path.startswith(RESPONSES) else self._check_chunks
            check(path, blocks)
        elif path in (CHATS, COMPLETIONS):
            check_answer(path, answer.json())
        elif path.endswith("/input_items"):
            check_items(answer.json())
        elif path.startswith(RESPONSES):
            self._check_response(answer.json())
        elif path.startswith("/v1/conversations"):
            check_conversation(answer.json())
        elif path.startswith("/v1/"):
            check_probe(path, answer.json())

    def _check_chunks(self, path: str, blocks: list[str]) -> None:
        """Chunks as the document and the official client have them, then the end mark, once."""
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        payloads = [block.removeprefix("data: ") for block in blocks]
        assert payloads.pop() == "[DONE]"
        validator = self._validator("ChatChunk" if path == CHATS else "Completion")
        for payload in payloads:
            validator.validate(json.loads(payload))
            check_chunk(path, json.loads(payload))

    def _check_events(self, path: str, blocks: list[str]) -> None:
        """Events as the document and the official client have them, numbered without a gap, to the last."""
        events = []
        for block in blocks:
            kind, payload = block.removeprefix("event: ").split("\ndata: ")
            events.append(json.loads(payload))
            assert events[-1]["type"] == kind
            assert any(validator.is_valid(events[-1]) for validator in self._events)
            check_event(events[-1])
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else path != RESPONSES
        if path == RESPONSES:
            assert numbers[0] == 0
            self._check_response(events[-1]["response"])

    def _check_response(self, answer: Any) -> None:
        if "deleted" in answer:
            return
        check_response(answer)
        self.num_continued += answer["previous_response_id"] is not None
        if answer["store"] and answer["status"] in ("completed", "incomplete"):
            self.kept.append(answer["id"])

    def _validator(self, name: str) -> Any:
        components = {"schemas": self.document["components"]["schemas"]}
        return jsonschema_rs.Draft202012Validator(
            {"$ref": f"#/components/schemas/{name}", "components": components}
        )


def _headers(path: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {ADMIN_KEY if path.startswith('/debug/') else KEY}"}


@pytest.fixture
def prober(server: Server) -> Prober:
    return Prober(server)


def drive(
    prober: Prober, path: str, mode: GenerationMode, max_examples: int, prepare: Any, method: str = "POST"
) -> None:
    """Send what hypothesis makes of the schema of an operation."""
    strategy = prober.operation(method, path).as_strategy(generation_mode=mode, headers=_headers(path))

    @settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        derandomize=not SLOW,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def run(case: Case) -> None:
        prepare(case)
        prober.ask(case)

    run()


def settled(prober: Prober, case: Case) -> None:
    if case.path == RESPONSES:
        settle_response(case.body, prober.kept[-8:])
    else:
        settle(case.path, case.body)


def bounded(case: Case) -> None:
    if case.path == RESPONSES:
        bound_response(case.body)
    else:
        bound(case.path, case.body)


@pytest.mark.parametrize("path", POSTS)
def test_bodies_that_agree_with_themselves_are_answered(prober: Prober, path: str) -> None:
    drive(prober, path, GenerationMode.POSITIVE, EXAMPLES, partial(settled, prober))
    share = prober.statuses[200] / prober.statuses.total()
    assert share >= MIN_SHARE_OF_200, prober.statuses
    assert prober.num_continued > 0 or path != RESPONSES


@pytest.mark.parametrize("path", POSTS)
def test_any_bodies_of_the_right_form(prober: Prober, path: str) -> None:
    drive(prober, path, GenerationMode.POSITIVE, EXAMPLES // 2, bounded)
    assert set(prober.statuses) <= ({200, 400, 404} if path == RESPONSES else {200, 400})


@pytest.mark.parametrize("path", POSTS)
def test_bodies_of_a_wrong_form_are_refused(prober: Prober, path: str) -> None:
    drive(prober, path, GenerationMode.NEGATIVE, EXAMPLES, lambda case: None)
    assert set(prober.statuses) <= {400, 404}  # 404: no such model, nothing to go on from


@pytest.mark.parametrize("path", POSTS)
def test_bodies_at_the_bounds(prober: Prober, path: str) -> None:
    number = 0
    for case in prober.at_the_bounds("POST", path):
        if case.meta is not None and case.meta.generation.mode.is_positive:
            number += 1
            if number % STRIDE and path.startswith("/v1/"):
                continue
            settled(prober, case)
        prober.ask(case)
    assert prober.statuses[200] > 5
    assert {400, 401, 405, 415} <= set(prober.statuses) <= {200, 400, 401, 404, 405, 415}


@pytest.mark.parametrize(("method", "path"), KEPT)
def test_responses_that_are_kept(prober: Prober, method: str, path: str) -> None:
    """Every second case is about one that is there."""
    number = 0

    def aim(case: Case) -> None:
        nonlocal number
        number += 1
        if number % 2 and case.path_parameters.get("id"):
            case.path_parameters["id"] = prober.kept[-1]
        if method == "DELETE" or number % 8 == 1:
            prober.kept.append(prober.make_response(background=number % 16 == 1))

    prober.kept.append(prober.make_response())
    for case in prober.at_the_bounds(method, path):
        aim(case)
        prober.ask(case)
    assert {200, 401, 404, 405} <= set(prober.statuses) <= {200, 400, 401, 404, 405}
    drive(prober, path, GenerationMode.POSITIVE, EXAMPLES, aim, method)
    assert set(prober.statuses) <= {200, 400, 401, 404, 405}


@pytest.mark.parametrize("path", GETS)
def test_what_takes_no_body(prober: Prober, path: str) -> None:
    for case in prober.at_the_bounds("GET", path):
        prober.ask(case)
    assert {200, 405} <= set(prober.statuses) <= {200, 401, 404, 405}


@pytest.mark.parametrize(("method", "rest"), CONVERSATIONS)
def test_conversations_at_the_bounds(prober: Prober, server: Server, method: str, rest: str) -> None:
    headers, items = {"Authorization": f"Bearer {KEY}"}, [{"role": "user", "content": "Hi"}] * 3
    made = requests.post(f"{server.url}/v1/conversations", json={"items": items}, headers=headers).json()
    listed = requests.get(f"{server.url}/v1/conversations/{made['id']}/items", headers=headers).json()
    for case in prober.at_the_bounds(method, f"/v1/conversations{rest}"):
        if rest:
            case.path_parameters = {"id": made["id"]}
        if "item_id" in rest:
            case.path_parameters["item_id"] = listed["first_id"]
        prober.ask(case)
    assert {200, 401} <= set(prober.statuses) <= {200, 400, 401, 404, 405, 415}, prober.statuses
