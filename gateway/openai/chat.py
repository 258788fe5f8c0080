"""/v1/chat/completions: its wire struct and its validation.

``ChatEndpoint.parse`` runs on offload threads. What the messages say is ``messages.py``, what the model may
call ``tools.py``, what it sees ``chat_prompt.py``, what it answers ``chat_answers.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec

from gateway.chat_template import ChatTemplate
from gateway.errors import bad_request, unsupported
from gateway.openai.answers import AnswerFormat, Identity
from gateway.openai.chat_answers import ChatFormat
from gateway.openai.chat_prompt import (
    Chat,
    ChatPrompts,
    ChatText,
    Effort,
    TemplateVariables,
    check_variables,
    make_chat,
)
from gateway.openai.chat_style import ChatStyle
from gateway.openai.messages import Message
from gateway.openai.model import ModelContext
from gateway.openai.notes import REQUIRED, Figure, Ignored, one_of, told
from gateway.openai.prompts import truncated
from gateway.openai.ranges import MAX_LOGPROBS, check_count
from gateway.openai.tool_grammar import forced_grammar
from gateway.openai.tools import FunctionName, Functions, ToolChoice, Tools, ToolUse, check_tools
from gateway.openai.validated import (
    CheckedFields,
    GenerationRequest,
    check_fields,
    check_max_tokens,
    complete,
)
from gateway.openai.wire import GenerationFields, MaxTokens, decode
from gateway.reading import Calls, Reading, Thoughts
from gateway.tools.base import ToolCallParser
from gateway.tools.forced import NamedCallParser, RequiredCallsParser


class Prediction(msgspec.Struct, kw_only=True):
    """What much of the answer is expected to be. It promises speed only, and is not used."""

    type: Annotated[str, one_of(("content",))]
    content: Ignored = None


class ChatWire(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Message] | None, REQUIRED, told(minItems=1, maxItems=Figure.WINDOW)] = None
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, told(minimum=0, maximum=MAX_LOGPROBS)] = None
    tools: Tools | None = None
    tool_choice: Annotated[str, one_of(("none", "auto", "required"))] | ToolChoice | None = None
    functions: Functions | None = None
    function_call: Annotated[str, one_of(("none", "auto"))] | FunctionName | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: Any = None
    verbosity: Any = None
    prediction: Prediction | None = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    chat_template: Any = None


class Capabilities(msgspec.Struct, kw_only=True):
    """What requests for this model can have."""

    chat: bool
    structured_output: bool
    tools: bool
    tool_call_parser: str | None
    reasoning_parser: str | None


_DECODER = msgspec.json.Decoder(ChatWire)


class ChatEndpoint:
    """Parsing and formatting for one model; ``template`` is None if it has none."""

    id_prefix = "chatcmpl-"

    def __init__(self, model: ModelContext, template: ChatTemplate | None, style: ChatStyle) -> None:
        self._model = model
        self._style = style
        self._prompts = ChatPrompts(model, template, style)
        thought_marks = () if style.thoughts is None else (style.thoughts.start, style.thoughts.end)
        call_marks = () if style.tools is None else style.tools.marks
        self._table = model.codec.table.showing(thought_marks)
        self._table_with_calls = self._table.showing(call_marks)
        self.capabilities = Capabilities(
            chat=template is not None,
            structured_output=True,
            tools=template is not None and style.tools is not None,
            tool_call_parser=None if style.tools is None else style.tools.name,
            reasoning_parser=None if style.thoughts is None else style.thoughts.name,
        )

    def parse(self, body: bytes) -> GenerationRequest:
        """Check a body, render its messages and tokenize them. Raises ApiError."""
        return self.check(decode(_DECODER, body))

    def check(self, wire: ChatWire) -> GenerationRequest:
        """The same for what was parsed already. Raises ApiError."""
        max_tokens = check_max_tokens(wire.max_tokens, "max_tokens")
        if wire.max_completion_tokens is not None:
            max_tokens = check_max_tokens(wire.max_completion_tokens, "max_completion_tokens")
        use = self._checked(check_tools(wire))
        checked = check_fields(wire, self._model, max_tokens, _num_logprobs(wire))
        checked = _with_grammar(checked, use)
        prompt = self._prompts.render(_chat(wire, use, may_think=checked.sampling.grammar is None))
        token_ids = self._model.codec.encode(prompt.text, add_special_tokens=bool(wire.add_special_tokens))
        token_ids = truncated(token_ids, wire.truncate_prompt_tokens)
        reading = self._reading(wire, checked, use, prompt)
        return complete(checked, [token_ids], self._model, "messages", reading=reading)

    def encode(self, chat: Chat) -> list[int]:
        """Token ids of a chat as the model is to see it. Raises ApiError."""
        self._checked(chat.use)
        return self._model.codec.encode(self._prompts.render(chat).text, add_special_tokens=False)

    def answer(self, request: GenerationRequest, identity: Identity) -> AnswerFormat:
        return ChatFormat(request, identity, self._model.codec.table)

    def _checked(self, use: ToolUse) -> ToolUse:
        if use.functions and self._style.tools is None:
            raise unsupported(
                use.param,
                "This server does not offer tools to its model; GET /v1/models tells what it supports.",
            )
        return use

    def _reading(
        self, wire: ChatWire, checked: CheckedFields, use: ToolUse, prompt: ChatText
    ) -> Reading | None:
        """What is to be told from the text of the answers. One that has a form to keep to has no thoughts."""
        calls = self._calls(use)
        marks = None if checked.sampling.grammar is not None else self._style.thoughts
        if calls is None and marks is None:
            return None
        thoughts = None
        if marks is not None:
            thoughts = Thoughts(marks, prompt.opens_thought, are_shown=wire.include_reasoning is not False)
        reads_marks = calls is not None and not use.is_forced
        return Reading(self._table_with_calls if reads_marks else self._table, thoughts, calls)

    def _calls(self, use: ToolUse) -> Calls | None:
        family = self._style.tools
        if not use.functions or family is None:
            return None
        new_parser: Callable[[], ToolCallParser] = partial(family.parser, use.names)
        if use.named is not None:
            new_parser = partial(NamedCallParser, use.named)
        elif use.is_required:
            new_parser = partial(RequiredCallsParser, use.names)
        return Calls(
            new_parser,
            family.new_call_id,
            finish_reason=_reason(use),
            at_most_one=not use.is_parallel,
            is_legacy=use.is_legacy,
        )


def _chat(wire: ChatWire, use: ToolUse, *, may_think: bool) -> Chat:
    return make_chat(
        wire.messages or (),
        use,
        check_variables(wire.chat_template_kwargs, wire.reasoning_effort),
        opens_answer=wire.add_generation_prompt,
        continues_last=wire.continue_final_message,
        may_think=may_think,
    )


def _with_grammar(checked: CheckedFields, use: ToolUse) -> CheckedFields:
    """A call that is forced has a grammar of its own. Raises ApiError for what does not go with that."""
    sampling = checked.sampling
    if not use.is_forced:
        if use.functions and sampling.grammar is not None:
            raise bad_request(
                checked.grammar_param,
                "A form of the answer does not go with tools that the model may or may not call; "
                "send 'tool_choice' as 'none' or 'required', or leave one of them out.",
            )
        return checked
    if sampling.beam is not None:
        raise bad_request("use_beam_search", "'use_beam_search' does not go with a call that is forced.")
    if sampling.ignore_eos:
        raise bad_request("ignore_eos", "'ignore_eos' does not go with a call that is forced.")
    sampling = msgspec.structs.replace(sampling, grammar=forced_grammar(use))
    return replace(checked, sampling=sampling, grammar_param=use.param)


def _reason(use: ToolUse) -> str:
    """Why an answer with calls ended, as OpenAI tells it: a named function's is a plain end."""
    if use.named is not None:
        return "stop"
    return "function_call" if use.is_legacy else "tool_calls"


def _num_logprobs(wire: ChatWire) -> int | None:
    top = check_count(wire.top_logprobs, MAX_LOGPROBS, "top_logprobs")
    if wire.logprobs:
        return top or 0
    if top:
        raise bad_request("top_logprobs", "'top_logprobs' goes with 'logprobs': true only.")
    return None
