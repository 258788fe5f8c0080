"""The document itself: it is OpenAPI, it has the router's paths and no others, and it hides no type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from gateway.app import build_app
from gateway.errors import TABLE, ErrorKind
from gateway.openai.responses.events import TERMINAL
from gateway.responses.paging import MAX_PAGE
from tests.gateway.house import House

Make = Callable[..., Any]
KEYS = {"api_keys": ("key",), "admin_key": "admin"}
# Answers of the router, which come for what the document does not have, and what is told on a WebSocket only.
OF_NO_OPERATION = {
    ErrorKind.METHOD_NOT_ALLOWED, ErrorKind.INVALID_STREAM_ID, ErrorKind.STREAM_LIMIT, ErrorKind.TURN_LIMIT,
    ErrorKind.CONNECTION_AGE, ErrorKind.IDLE,
}  # fmt: skip
NO_STORE: Any = None  # for routes that nobody follows


async def document_of(make_house: Make, **options: Any) -> Any:
    house: House = await make_house(**options)
    reply = await house.request("GET", "/openapi.json")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    return reply.json


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


@pytest.mark.parametrize("options", [{}, KEYS])
async def test_it_is_openapi(make_house: Make, options: dict[str, Any]) -> None:
    document = await document_of(make_house, **options)
    OPENAPI_31_VALIDATOR.validate(document)
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    assert "figure:" not in json.dumps(document)
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)


def test_the_meta_schema_can_refuse() -> None:
    assert not OPENAPI_31_VALIDATOR.is_valid({"openapi": "3.1.1", "info": {"title": "t"}, "paths": {}})


async def test_every_reference_leads_somewhere_and_every_component_is_referred_to(make_house: Make) -> None:
    document = await document_of(make_house, **KEYS)
    referred = set(references(document))
    components = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "headers", "parameters")
        for name in document["components"][kind]
    }
    assert referred == components


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from references(item)


@pytest.mark.parametrize("options", [{}, KEYS])
async def test_it_has_the_routers_paths_and_no_others(make_house: Make, options: dict[str, Any]) -> None:
    house: House = await make_house(**options)
    document = (await house.request("GET", "/openapi.json")).json
    routed = {
        (route.method.lower(), route.resource.canonical)
        for route in build_app(house.gateway, NO_STORE).router.routes()
        if route.resource is not None
    }
    routed = {(method, path) for method, path in routed if method != "head"}  # GET without its body
    assert routed == {(method, path) for method, path, _ in operations(document)}
    assert ("get", "/debug/kv") in routed or not options


async def test_keys_are_told_where_they_are_needed_only(make_house: Make) -> None:
    locked = await document_of(make_house, **KEYS)
    schemes = {
        path: [name for requirement in operation.get("security", []) for name in requirement]
        for _, path, operation in operations(locked)
    }
    assert schemes["/v1/chat/completions"] == schemes["/tokenize"] == schemes["/v1/models"] == ["apiKey"]
    assert schemes["/debug/kv"] == ["adminKey"]
    assert schemes["/health"] == schemes["/metrics"] == schemes["/openapi.json"] == schemes["/version"] == []
    assert all(
        ("401" in operation["responses"]) == bool(schemes[path]) for _, path, operation in operations(locked)
    )
    house_without = await document_of(make_house)
    assert house_without["components"]["securitySchemes"] == {}
    assert not any(path.startswith("/debug/") for path in house_without["paths"])


async def test_it_states_this_servers_figures(make_house: Make) -> None:
    document = await document_of(make_house, served_model_names=("a", "b"), max_num_seqs=5)
    fields = document["components"]["schemas"]["CompletionWire"]["properties"]
    assert fields["model"]["enum"] == ["a", "b", None]
    assert fields["n"]["maximum"] == 5
    assert fields["min_tokens"]["maximum"] == 256
    assert fields["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == 299
    assert document["components"]["parameters"]["modelName"]["schema"]["enum"] == ["a", "b"]


async def test_every_cause_of_an_error_stands_at_some_path(make_house: Make) -> None:
    codes = {TABLE[kind].code for kind in ErrorKind if kind not in OF_NO_OPERATION}
    document = await document_of(make_house, **KEYS)
    assert codes == {
        code
        for _, _, operation in operations(document)
        for response in operation["responses"].values()
        for code in codes_in(response["content"])
    }


def codes_in(value: Any) -> Iterator[str]:
    """Codes of errors that a response is narrowed to."""
    if isinstance(value, dict):
        if isinstance(value.get("code"), dict):
            yield from value["code"].get("enum", ())
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from codes_in(item)


async def test_a_status_has_the_codes_of_its_causes(make_house: Make) -> None:
    document = await document_of(make_house)
    responses = document["paths"]["/v1/completions"]["post"]["responses"]
    assert set(responses) == {
        "200", "400", "404", "408", "413", "414", "415", "417", "429", "431", "500", "503"
    }  # fmt: skip
    _, narrowed = responses["400"]["content"]["application/json"]["schema"]["allOf"]
    codes = narrowed["properties"]["error"]["properties"]["code"]["enum"]
    causes = (ErrorKind.BAD_REQUEST, ErrorKind.UNSUPPORTED, ErrorKind.CONTEXT_LENGTH)
    assert set(codes) >= {TABLE[kind].code for kind in causes}


async def test_a_stream_is_described_by_its_events(make_house: Make) -> None:
    document = await document_of(make_house)
    content = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatAnswer"}
    done, payload = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    assert done == {"const": "[DONE]"}
    assert payload["contentSchema"]["anyOf"][0] == {"$ref": "#/components/schemas/ChatChunk"}


async def test_a_stream_of_typed_events_has_their_types(make_house: Make) -> None:
    document = await document_of(make_house)
    for method, path in (("post", "/v1/responses"), ("get", "/v1/responses/{id}")):
        content = document["paths"][path][method]["responses"]["200"]["content"]
        assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ResponseObject"}
        schema = content["text/event-stream"]["schema"]
        assert schema["required"] == ["event", "data"]
        told = schema["properties"]["data"]["contentSchema"]["anyOf"]
        names = [reference["$ref"].rpartition("/")[2] for reference in told]
        schemas = [document["components"]["schemas"][name] for name in names]
        types = [type for schema in schemas for type in schema["properties"]["type"]["enum"]]
        assert len(types) == len(set(types))
        assert set(types) >= {*TERMINAL, "response.created", "response.output_text.delta"}
        assert all("sequence_number" in schema["required"] for schema in schemas)


async def test_parameters_of_the_query_have_their_ranges(make_house: Make) -> None:
    document = await document_of(make_house)
    operation = document["paths"]["/v1/responses/{id}/input_items"]["get"]
    names = [reference["$ref"].rpartition("/")[2] for reference in operation["parameters"]]
    parameters = {name: document["components"]["parameters"][name] for name in names}
    assert parameters["limit"]["schema"]["maximum"] == MAX_PAGE
    assert parameters["order"]["schema"]["enum"] == ["asc", "desc"]
    assert parameters["id"]["required"]


async def test_no_field_that_may_be_sent_is_of_an_untold_type(make_house: Make) -> None:
    """A field of type Any must say what it may be, or that it has no effect."""
    schemas = (await document_of(make_house))["components"]["schemas"]
    untold = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        if schema.get("additionalProperties") is False
        for field, told in schema["properties"].items()
        if not set(told) - {"description", "default"}
        and told.get("description") != "Accepted without effect."
    ]
    assert untold == []


async def test_unknown_fields_are_refused_and_what_must_be_there_is_required(make_house: Make) -> None:
    schemas = (await document_of(make_house))["components"]["schemas"]
    for name, needed in (
        ("ChatWire", ["messages"]),
        ("CompletionWire", ["prompt"]),
        ("DetokenizeWire", ["tokens"]),
        ("TokenizeWire", []),
        ("ResponseWire", []),
    ):
        assert schemas[name]["additionalProperties"] is False
        assert schemas[name]["required"] == needed
    assert schemas["ChatWire"]["properties"]["messages"]["type"] == "array"  # not null
    assert "default" not in schemas["ChatWire"]["properties"]["messages"]
