"""Tools in requests: what they ask for, caps, and the grammar of calls that are forced."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError
from gateway.openai.chat import ChatWire
from gateway.openai.schema_limits import MAX_DEPTH, MAX_FORCED_BYTES
from gateway.openai.tool_grammar import forced_grammar
from gateway.openai.tools import FunctionSpec, Tool, ToolUse, check_tools, offered

X = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
F: dict[str, Any] = {"name": "f", "description": "does f", "parameters": X}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


def use(**fields: Any) -> ToolUse:
    return check_tools(msgspec.json.decode(json.dumps(fields).encode(), type=ChatWire))


TOOLS = [tool(**F), tool(name="g")]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


@pytest.mark.parametrize(
    ("fields", "names", "forced"),
    [
        ({}, "", None), ({"tools": []}, "", None), ({"tool_choice": "none"}, "", None),
        ({"tool_choice": "auto"}, "", None),
        ({"tools": TOOLS}, "fg", None), ({"tools": TOOLS, "tool_choice": "auto"}, "fg", None),
        ({"tools": TOOLS, "tool_choice": "none"}, "", None),
        ({"tools": TOOLS, "tool_choice": "required"}, "fg", "any"),
        ({"tools": TOOLS, "tool_choice": named("g")}, "fg", "g"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "g")}, "g", None),
        ({"tools": TOOLS, "tool_choice": allowed("required", "f")}, "f", "any"),
        ({"functions": [F]}, "f", None), ({"functions": [F], "function_call": "auto"}, "f", None),
        ({"functions": [F], "function_call": "none"}, "", None),
        ({"functions": [F], "function_call": {"name": "f"}}, "f", "f"),
    ],
)  # fmt: skip
def test_what_is_asked_for(fields: dict[str, Any], names: str, forced: str | None) -> None:
    found = use(**fields)
    assert found.names == set(names)
    assert found.named == (forced if forced != "any" else None)
    assert found.is_required == (forced == "any")
    assert found.is_forced == (forced is not None)
    assert found.is_legacy == ("functions" in fields and bool(names))


def test_parallel_calls_may_be_forbidden_and_the_old_form_has_none() -> None:
    assert use(tools=TOOLS).is_parallel
    assert not use(tools=TOOLS, parallel_tool_calls=False).is_parallel
    assert not use(functions=[F]).is_parallel


DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool(name="f")] * 2}, "tools[1].function.name"),
        ({"tools": [tool(name=f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [tool(name="")]}, "tools[0].function.name"),
        ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
        ({"tools": [tool(name="é")]}, "tools[0].function.name"),
        ({"tools": [tool(name="f\n")]}, "tools[0].function.name"),
        ({"tools": [tool(name="x" * 65)]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool(name="f", parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [tool(name="f", parameters=DEEP)]}, "tools[0].function.parameters"),
        ({"tools": [tool(name="f", parameters={"title": "x" * 70_000})]}, "tools[0].function.parameters"),
        ({"tools": [tool(name="f", description="x" * 70_000)]}, "tools[0].function.description"),
        ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": named("f")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": named("h")}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "f", "h")}, "tool_choice.allowed_tools.tools[1]"),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": TOOLS, "tool_choice": allowed("never", "f")}, "tool_choice.allowed_tools.mode"),
        ({"tools": TOOLS, "functions": [F]}, "functions"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": [F], "function_call": {"name": "h"}}, "function_call.name"),
        ({"functions": [F], "function_call": "required"}, "function_call"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [F], "tool_choice": {"type": "x"}}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        use(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert "xxxx" not in caught.value.message


def schema_of(found: ToolUse) -> Any:
    grammar = forced_grammar(found)
    assert grammar.kind == "json_schema"
    return json.loads(grammar.text)


def test_a_named_functions_answer_is_its_arguments() -> None:
    assert schema_of(use(tools=TOOLS, tool_choice=named("f"))) == {**X, "additionalProperties": False}
    assert schema_of(use(tools=TOOLS, tool_choice=named("g"))) == {
        "type": "object", "properties": {}, "additionalProperties": False,
    }  # fmt: skip


@pytest.mark.parametrize("more", [{"additionalProperties": True}, {"anyOf": [{}]}, {"$ref": "#/$defs/a"}])
def test_a_schema_that_says_itself_what_else_there_may_be_is_left_alone(more: dict[str, Any]) -> None:
    tools = [tool(name="f", parameters={**X, **more})]
    assert schema_of(use(tools=tools, tool_choice=named("f"))) == {**X, **more}


def test_required_calls_are_an_array_and_references_move_along() -> None:
    parameters = {
        "properties": {"p": {"$ref": "#/$defs/P"}, "$ref": {"type": "string"}, "self": {"$ref": "#"}},
        "$defs": {"P": {"type": "object", "properties": {"q": {"$ref": "#/$defs/P"}}}},
    }
    schema = schema_of(use(tools=[tool(**F), tool(name="r", parameters=parameters)], tool_choice="required"))
    assert (schema["type"], schema["minItems"], schema.get("maxItems")) == ("array", 1, None)
    assert [item["properties"]["name"]["const"] for item in schema["items"]["anyOf"]] == ["f", "r"]
    assert list(schema["items"]["anyOf"][1]["properties"]) == ["name", "arguments"]
    assert schema["items"]["anyOf"][1]["properties"]["arguments"] == {"$ref": "#/$defs/f1"}
    moved = schema["$defs"]["f1"]
    assert moved["properties"]["p"] == {"$ref": "#/$defs/f1/$defs/P"}
    assert moved["properties"]["self"] == {"$ref": "#/$defs/f1"}
    assert moved["properties"]["$ref"] == {"type": "string"}
    assert moved["$defs"]["P"]["properties"]["q"] == {"$ref": "#/$defs/f1/$defs/P"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 970, 985])
def test_schemas_are_not_nested_without_end(depth: int) -> None:
    assert use(tools=[tool(name="f", parameters=nested(MAX_DEPTH))]).functions
    function = FunctionSpec(name="f", parameters=nested(depth))
    with pytest.raises(ApiError, match="nested more than 64 levels deep"):
        offered([Tool(type="function", function=function)])


LARGE = {"type": "object", "properties": {"p": {"enum": ["x" * 1000] * 60}}}  # 60 KB


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool(name=f"f{i}", parameters=LARGE) for i in range(128)]}, "tools"),
        ({"tools": [tool(name=f"f{i}", parameters=LARGE) for i in range(5)]}, "tools"),
    ],
)
def test_all_schemas_of_a_forced_call_have_a_limit_together(fields: dict[str, Any], param: str) -> None:
    assert use(**fields).functions
    with pytest.raises(ApiError) as caught:
        forced_grammar(use(**fields, tool_choice="required"))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert "xxxx" not in caught.value.message


def test_what_moving_adds_to_the_schemas_counts_too() -> None:
    refers = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(1800)}}
    tools = [tool(name=f"f{i}", parameters=refers) for i in range(4)]
    assert sum(len(json.dumps(one["function"]["parameters"])) for one in tools) < MAX_FORCED_BYTES
    with pytest.raises(ApiError) as caught:
        forced_grammar(use(tools=tools, tool_choice="required"))
    assert caught.value.param == "tools"


def test_as_many_large_tools_as_are_taken() -> None:
    tools = [tool(name=f"f{i}", parameters=LARGE) for i in range(4)]
    assert len(forced_grammar(use(tools=tools, tool_choice="required")).text) <= MAX_FORCED_BYTES
    tools += [tool(name=f"g{i}", parameters=LARGE) for i in range(124)]
    assert forced_grammar(use(tools=tools, tool_choice=named("f0"))).text
    assert forced_grammar(use(tools=tools, tool_choice=allowed("required", "f0", "g9"))).text


def test_without_parallel_calls_the_array_has_one() -> None:
    assert schema_of(use(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))["maxItems"] == 1


def test_the_grammar_takes_what_the_schemas_take() -> None:
    llguidance = pytest.importorskip("llguidance")
    again = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}},
        "required": ["v"],
    }
    found = use(tools=[tool(name="l", parameters=again), tool(name="n")], tool_choice="required")
    grammar = llguidance.LLMatcher.grammar_from_json_schema(forced_grammar(found).text)
    tokenizer = llguidance.LLTokenizer("byte")
    for text, is_valid in (
        ('[{"name":"l","arguments":{"v":1,"next":{"v":2}}},{"name":"n","arguments":{}}]', True),
        ('[{"name":"l","arguments":{"v":1,"next":{"v":"2"}}}]', False),
        ('[{"name":"n","arguments":{"v":1}}]', False),
        ('[{"name":"m","arguments":{}}]', False),
        ("[]", False),
    ):
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        tokens = tokenizer.tokenize_str(text)
        taken = matcher.try_consume_tokens(tokens)
        assert (taken == len(tokens) and matcher.is_accepting()) is is_valid, text
