"""Tools of a chat request: their wire structs and their checks.

Pure; runs on offload threads. ``functions`` and ``function_call``, the deprecated form, become the same
``ToolUse``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import msgspec

from gateway.errors import bad_request, unsupported
from gateway.openai.notes import REQUIRED, one_of, told
from gateway.openai.schema_limits import check_schema

MAX_TOOLS = 128
MAX_DESCRIPTION_CHARS = 65_536
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_PATTERN = f"^{_NAME.pattern}$"
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class FunctionSpec(msgspec.Struct, kw_only=True):
    name: Annotated[str, told(pattern=NAME_PATTERN)]
    description: Annotated[str | None, told(maxLength=MAX_DESCRIPTION_CHARS)] = None
    parameters: Annotated[
        dict[str, Any] | None, told("A JSON schema.", properties={"type": {"const": "object"}})
    ] = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    type: Annotated[str, one_of(["function"])]
    function: Annotated[FunctionSpec | None, REQUIRED] = None


Tools = Annotated[list[Tool], told(maxItems=MAX_TOOLS)]
Functions = Annotated[list[FunctionSpec], told(maxItems=MAX_TOOLS)]


class FunctionName(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    type: str = "function"
    function: FunctionName | None = None


class AllowedTools(msgspec.Struct, kw_only=True):
    mode: Annotated[str, one_of(("auto", "required"))]
    tools: Annotated[list[NamedTool], told(minItems=1)]


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Annotated[str, one_of(("function", "allowed_tools"))]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class ToolFields(Protocol):
    """The fields of a chat request that are about tools."""

    tools: list[Tool] | None
    tool_choice: str | ToolChoice | None
    parallel_tool_calls: bool | None
    functions: list[FunctionSpec] | None
    function_call: str | FunctionName | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request wants with tools. ``functions`` are those that the model may call now.

    It must call one of them if ``is_required``, and ``named`` if that is set. ``is_legacy``: the answer has
    ``function_call`` instead of ``tool_calls``.
    """

    functions: tuple[FunctionSpec, ...] = ()
    is_required: bool = False
    named: str | None = None
    is_parallel: bool = True
    is_legacy: bool = False

    @property
    def is_forced(self) -> bool:
        return self.is_required or self.named is not None

    @property
    def param(self) -> str:
        """The field that brought the functions."""
        return "functions" if self.is_legacy else "tools"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    def template_tools(self) -> list[dict[str, Any]] | None:
        """The functions as chat templates expect them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    "description": function.description or "",
                    "parameters": function.parameters or _NO_PARAMETERS,
                },
            }
            for function in self.functions
        ] or None


def check_tools(wire: ToolFields) -> ToolUse:
    """Raises ApiError naming the first bad field."""
    if wire.functions and wire.tools:
        raise bad_request("functions", "'functions' is the old form of 'tools'; send one of them.")
    if not wire.tools and wire.tool_choice not in (None, "none", "auto"):
        raise bad_request("tool_choice", "'tool_choice' goes with 'tools' only.")
    if wire.functions:
        _check_functions(wire.functions, "functions", "functions[{}]")
        return _old_choice(tuple(wire.functions), wire.function_call)
    if wire.function_call not in (None, "none", "auto"):
        raise bad_request("function_call", "'function_call' goes with 'functions' only.")
    use = replace(offered(wire.tools or ()), is_parallel=wire.parallel_tool_calls is not False)
    return _choice(use, wire.tool_choice)


def offered(tools: Sequence[Tool]) -> ToolUse:
    """Tools that may be called, or not. Raises ApiError."""
    functions = _functions_of(tools)
    _check_functions(functions, "tools", "tools[{}].function")
    return ToolUse(functions)


def _functions_of(tools: Sequence[Tool]) -> tuple[FunctionSpec, ...]:
    functions = []
    for i, tool in enumerate(tools):
        if tool.type != "function":
            raise unsupported(f"tools[{i}].type", "Only tools of type 'function' are supported.")
        if tool.function is None:
            raise bad_request(f"tools[{i}].function", "A function tool must have a function.")
        functions.append(tool.function)
    return tuple(functions)


def _check_functions(functions: Sequence[FunctionSpec], param: str, item: str) -> None:
    if len(functions) > MAX_TOOLS:
        raise bad_request(param, f"'{param}' must not have more than {MAX_TOOLS} entries.")
    names = set()
    for i, function in enumerate(functions):
        where = item.format(i)
        if not _NAME.fullmatch(function.name):
            raise bad_request(
                f"{where}.name", "A function's name must be 1 to 64 letters, digits, underscores or dashes."
            )
        if function.name in names:
            raise bad_request(f"{where}.name", "Two functions have the same name.")
        names.add(function.name)
        if len(function.description or "") > MAX_DESCRIPTION_CHARS:
            raise bad_request(f"{where}.description", "The description is too long.")
        if function.parameters is not None:
            _check_schema(function.parameters, f"{where}.parameters")


def _check_schema(schema: dict[str, Any], param: str) -> None:
    if schema.get("type", "object") != "object":
        raise bad_request(param, "The parameters must be a JSON schema of type 'object'.")
    check_schema(schema, param)


def _old_choice(functions: tuple[FunctionSpec, ...], choice: str | FunctionName | None) -> ToolUse:
    param = "function_call"
    if choice == "none":
        return ToolUse()
    use = ToolUse(functions, is_parallel=False, is_legacy=True)
    if isinstance(choice, FunctionName):
        return _with_name(use, choice.name, f"{param}.name")
    if choice not in (None, "auto"):
        raise bad_request(param, f"'{param}' must be 'none', 'auto', or an object with a name.")
    return use


def _choice(use: ToolUse, choice: str | ToolChoice | None) -> ToolUse:
    param = "tool_choice"
    if choice is None or choice == "auto":
        return use
    if choice == "none":
        return ToolUse()
    if isinstance(choice, str):
        return _with_mode(use, choice, param)
    if choice.type == "function" and choice.function is not None:
        return _with_name(use, choice.function.name, f"{param}.function.name")
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        return _with_allowed(use, choice.allowed_tools, f"{param}.allowed_tools")
    raise bad_request(
        param, f"'{param}' must be 'none', 'auto', 'required', a function's name, or a list of allowed tools."
    )


def _with_mode(use: ToolUse, mode: str, param: str) -> ToolUse:
    if mode not in ("auto", "required"):
        raise bad_request(param, f"'{param}' must be 'none', 'auto' or 'required', or name a function.")
    return replace(use, is_required=mode == "required")


def _with_name(use: ToolUse, name: str, param: str) -> ToolUse:
    if name not in use.names:
        raise bad_request(param, "The function that is chosen is none of those that were sent.")
    return replace(use, named=name)


def _with_allowed(use: ToolUse, allowed: AllowedTools, param: str) -> ToolUse:
    """Only the allowed ones are shown to the model."""
    if not allowed.tools:
        raise bad_request(f"{param}.tools", "No tool is allowed; use 'tool_choice': 'none' for that.")
    names = set()
    for i, tool in enumerate(allowed.tools):
        if tool.function is None or tool.function.name not in use.names:
            raise bad_request(f"{param}.tools[{i}]", "An allowed tool is none of those that were sent.")
        names.add(tool.function.name)
    functions = tuple(function for function in use.functions if function.name in names)
    return _with_mode(replace(use, functions=functions), allowed.mode, f"{param}.mode")
