"""/v1/responses: from what a client sent and the history before it to a request that the engine can take.

Pure; runs on offload threads. A response is a chat by another name: it becomes the chat's own wire struct and
passes the chat's own checks, so that a parameter cannot mean two things. What they find wrong is told by
the names that fields have here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from gateway.errors import ApiError, ErrorKind, bad_request, unsupported
from gateway.openai.chat import ChatEndpoint, ChatWire
from gateway.openai.model import ModelContext
from gateway.openai.responses.items import Item, check_calls, check_input
from gateway.openai.responses.prompt import messages_of, turn_starts
from gateway.openai.responses.wire import (
    INCLUDABLE,
    INCLUDED_LOGPROBS,
    ChosenTool,
    FunctionTool,
    ResponseWire,
)
from gateway.openai.tools import (
    AllowedTools,
    FunctionName,
    FunctionSpec,
    NamedTool,
    Tool,
    ToolChoice,
)
from gateway.openai.validated import OPEN_ANSWER_TOKENS, GenerationRequest
from gateway.openai.wire import JsonSchemaFormat, ResponseFormat, SamplingFields, decode

_DECODER = msgspec.json.Decoder(ResponseWire)
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function.name": "tool_choice.name",
    "tool_choice.allowed_tools": "tool_choice",
}
_NAMED_FIRST = re.compile("|".join(map(re.escape, _NAMES)))
_FUNCTION = re.compile(r"(tools\[\d+\])\.function")


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A response that passed every check. ``items`` are this turn's own."""

    wire: ResponseWire
    items: tuple[Item, ...]
    generation: GenerationRequest

    @property
    def generates(self) -> bool:
        """Whether there is to be an answer."""
        return self.generation.sampling.max_tokens > 0

    @property
    def num_top_logprobs(self) -> int | None:
        return self.generation.logprobs

    @property
    def conversation_id(self) -> str | None:
        return conversation_of(self.wire)


def conversation_of(wire: ResponseWire) -> str | None:
    """The id of the conversation that a turn belongs to."""
    given = wire.conversation
    return given if given is None or isinstance(given, str) else given.id


class ResponsesEndpoint:
    """Checks for one model, through the chat's."""

    def __init__(self, model: ModelContext, chat: ChatEndpoint) -> None:
        self._model = model
        self._chat = chat

    def decode(self, body: bytes) -> ResponseWire:
        """What was sent, and what can be said of it without its history. Raises ApiError."""
        wire = decode(_DECODER, body)
        _check_kind(wire)
        _check_includes(wire)
        return wire

    def check(self, wire: ResponseWire, history: Sequence[Item]) -> ResponseRequest:
        """Join a turn with the history before it, render and tokenize both. Raises ApiError."""
        items = check_input(wire.input)
        check_calls(history, items)
        if not items and not history and not wire.instructions:
            raise bad_request("input", "'input' is missing or empty.")
        try:
            generation = self._fitting(wire, [*history, *items])
        except ApiError as error:
            raise _renamed(error) from None
        grammar_param = _param_here(generation.grammar_param)
        return ResponseRequest(wire, tuple(items), replace(generation, grammar_param=grammar_param))

    def prompt_token_ids(self, wire: ResponseWire, items: Sequence[Item]) -> tuple[int, ...]:
        """What ``check`` made of the same turn and history. Raises ApiError."""
        return self._fitting(wire, items).prompts[0].token_ids

    def _fitting(self, wire: ResponseWire, items: Sequence[Item]) -> GenerationRequest:
        """With as much of the history as there is room for, if the rest may be left out."""
        if wire.truncation != "auto":
            return self._generation(wire, items)
        starts = [0, *(start for start in turn_starts(items) if start)]
        wanted = min(wire.max_output_tokens or OPEN_ANSWER_TOKENS, self._model.window // 2)
        made: dict[int, GenerationRequest] = {}

        def fits(start: int) -> bool:
            try:
                generation = made[start] = self._generation(wire, items[start:])
            except ApiError as error:
                if error.kind is not ErrorKind.CONTEXT_LENGTH:
                    raise
                return False
            return self._model.window - generation.num_prompt_tokens >= wanted

        first = 0 if fits(0) else bisect_left(starts, True, lo=1, key=fits)  # most often all of it fits
        start = starts[min(first, len(starts) - 1)]
        return made[start] if start in made else self._generation(wire, items[start:])

    def _generation(self, wire: ResponseWire, items: Sequence[Item]) -> GenerationRequest:
        generates = wants_answer(wire)
        generation = self._chat.check(_as_chat(wire, items, opens_answer=generates))
        return generation if generates else _without_answer(generation)


def wants_answer(wire: ResponseWire) -> bool:
    """False if the turn is only to be prepared."""
    options = wire.prompt_cache_options
    return wire.generate is not False and not (options is not None and options.prewarm)


def _check_kind(wire: ResponseWire) -> None:
    if wire.prompt is not None:
        raise unsupported("prompt", "'prompt' is not supported: prompts are kept by whoever sends them.")
    if wire.conversation is not None and wire.previous_response_id is not None:
        raise bad_request(
            "conversation", "'conversation' does not go with 'previous_response_id'; send one of them."
        )
    if wire.background and wire.store is False:
        raise bad_request("background", "'background' needs 'store': it is fetched from where it is kept.")
    if wire.truncation not in (None, "auto", "disabled"):
        raise bad_request("truncation", "'truncation' must be auto or disabled.")
    if wire.text is not None and wire.text.verbosity not in (None, "medium"):
        raise unsupported(
            "text.verbosity", "'text.verbosity' is not supported: the model has no such setting."
        )
    if wire.stream_options is not None and not wire.stream:
        raise bad_request("stream_options", "'stream_options' goes with 'stream': true only.")


def _check_includes(wire: ResponseWire) -> None:
    if not set(wire.include or ()) <= set(INCLUDABLE):
        raise unsupported("include", f"'include' can have {' and '.join(INCLUDABLE)} here.")


def _as_chat(wire: ResponseWire, items: Sequence[Item], *, opens_answer: bool) -> ChatWire:
    shared = {name: getattr(wire, name) for name in SamplingFields.__struct_fields__}
    tells_logprobs = INCLUDED_LOGPROBS in (wire.include or ())
    return ChatWire(
        **shared,
        messages=messages_of(wire.instructions, items),
        max_completion_tokens=wire.max_output_tokens,
        logprobs=tells_logprobs or bool(wire.top_logprobs),
        top_logprobs=wire.top_logprobs,
        tools=[_tool(tool) for tool in wire.tools] if wire.tools else None,
        tool_choice=_choice(wire.tool_choice),
        reasoning_effort=None if wire.reasoning is None else wire.reasoning.effort,
        response_format=_format(wire),
        chat_template_kwargs=wire.chat_template_kwargs,
        add_generation_prompt=opens_answer,
    )


def _tool(tool: FunctionTool) -> Tool:
    function = FunctionSpec(
        name=tool.name or "",
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return Tool(type=tool.type, function=function)


def _choice(choice: str | ChosenTool | None) -> str | ToolChoice | None:
    if not isinstance(choice, ChosenTool):
        return choice
    if choice.type != "allowed_tools":
        return ToolChoice(type=choice.type, function=FunctionName(choice.name or ""))
    allowed = [
        NamedTool(type=tool.type, function=FunctionName(tool.name or "")) for tool in choice.tools or ()
    ]
    return ToolChoice(type=choice.type, allowed_tools=AllowedTools(mode=choice.mode or "auto", tools=allowed))


def _format(wire: ResponseWire) -> ResponseFormat | None:
    wanted = None if wire.text is None else wire.text.format
    if wanted is None:
        return None
    schema = None
    if wanted.type == "json_schema":
        schema = JsonSchemaFormat(
            name=wanted.name, description=wanted.description, schema=wanted.schema, strict=wanted.strict
        )
    return ResponseFormat(type=wanted.type, json_schema=schema)


def _without_answer(generation: GenerationRequest) -> GenerationRequest:
    """The same prompt, computed and kept, with nothing generated behind it."""
    prompt = generation.prompts[0]
    sampling = msgspec.structs.replace(
        prompt.sampling, max_tokens=0, min_tokens=0, grammar=None, logprobs=None
    )
    return replace(
        generation, prompts=(replace(prompt, sampling=sampling),), is_open_ended=False, reading=None
    )


def _renamed(error: ApiError) -> ApiError:
    """The same, with the fields called as they are here."""
    return ApiError(
        error.kind,
        _here(error.message),
        param=_param_here(error.param),
        retry_after_s=error.retry_after_s,
    )


def _here(text: str) -> str:
    quoted = _NAMED_FIRST.sub(lambda match: _NAMES[match[0]], text) if "'" in text else text
    return _FUNCTION.sub(r"\1", quoted)


def _param_here(param: str | None) -> str | None:
    if param is None:
        return None
    if param.startswith("messages"):
        return "input"  # where in it cannot be told: the history counts there too
    return _here(f"'{param}'").strip("'")
