"""From messages to the prompt of a chat: through the model's template, with tools in its form or in text.

Runs on offload threads. Whatever a template cannot do with the messages is a 400 with its own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from gateway.chat_template import RESERVED, ChatTemplate, PromptTooLargeError, TemplateRenderError
from gateway.errors import bad_request
from gateway.openai.chat_style import ChatStyle
from gateway.openai.messages import Message, MessageForm, template_messages
from gateway.openai.model import ModelContext, too_many_chars
from gateway.openai.notes import one_of, told
from gateway.openai.text_tools import Messages, calls_as_text, describe, with_system_text, with_user_text
from gateway.openai.tools import ToolUse

_CONTINUED_HERE = "<|tidegate: the final message goes on here|>"
_MAX_VARIABLES = 64
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
Effort = Annotated[str, one_of(EFFORTS)]
TemplateVariables = Annotated[
    dict[Annotated[str, told(**{"not": {"enum": sorted(RESERVED)}})], Any],
    told("Variables for the chat template.", maxProperties=_MAX_VARIABLES),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What is to be shown to the model. ``continues_last``: the answer goes on with the last message.

    Without ``may_think`` the answer has a form to keep to, and begins with it.
    """

    messages: Sequence[Message]
    use: ToolUse = field(default_factory=ToolUse)
    variables: Mapping[str, Any] = field(default_factory=dict)
    opens_answer: bool = True
    continues_last: bool = False
    may_think: bool = True


@dataclass(frozen=True, slots=True)
class ChatText:
    """A prompt; ``opens_thought`` if the answer begins inside a thought."""

    text: str
    opens_thought: bool = False


class ChatPrompts:
    """Renders chats for one model; ``template`` is None if it has none."""

    def __init__(self, model: ModelContext, template: ChatTemplate | None, style: ChatStyle) -> None:
        self._model = model
        self._template = template
        self._style = style

    def render(self, chat: Chat) -> ChatText:
        """The prompt of a chat. Raises ApiError."""
        if self._template is None:
            raise bad_request("messages", "This model has no chat template; use /v1/completions instead.")
        if not chat.messages:
            raise bad_request("messages", "'messages' is missing or empty.")
        if len(chat.messages) > self._model.window:
            raise bad_request("messages", f"'messages' has more than {self._model.window} entries.")
        plain = template_messages(chat.messages, self._form(self._template))
        if chat.continues_last:
            plain[-1] = _marked_to_continue(plain[-1])
        try:
            text = self._show(self._template, plain, chat)
        except PromptTooLargeError as error:
            raise too_many_chars(error.max_chars + 1, self._model, "messages") from None
        except TemplateRenderError as error:
            raise bad_request("messages", str(error)) from None
        return self._continued(text, plain[-1]) if chat.continues_last else self._opened(text, chat)

    def _form(self, template: ChatTemplate) -> MessageForm:
        family = self._style.tools
        return MessageForm(
            template.knows_developer,
            argument_strings=not self._style.tools_in_text and template.wants_argument_strings,
            short_ids=family is not None and family.short_ids,
        )

    def _show(self, template: ChatTemplate, plain: Messages, chat: Chat) -> str:
        """Raises TemplateRenderError and PromptTooLargeError."""
        if not self._style.tools_in_text:
            return self._fill(template, plain, chat, chat.use.template_tools())
        plain = calls_as_text(plain)
        if not chat.use.functions:
            return self._fill(template, plain, chat)
        description = describe(chat.use)
        try:
            return self._fill(template, with_system_text(plain, description), chat)
        except TemplateRenderError:
            without_system = with_user_text(plain, description)
            if without_system is None:
                raise
            return self._fill(template, without_system, chat)

    def _fill(
        self, template: ChatTemplate, plain: Messages, chat: Chat, tools: Messages | None = None
    ) -> str:
        return template.render(
            plain,
            self._model.max_prompt_chars,
            tools=tools,
            opens_answer=chat.opens_answer,
            variables=chat.variables,
        )

    def _continued(self, text: str, last: dict[str, Any]) -> ChatText:
        """Up to the end of what the final message says."""
        end = text.rfind(_CONTINUED_HERE)
        if end < 0:
            raise bad_request(
                "continue_final_message", "The chat template does not show the final message as it is."
            )
        marks = self._style.thoughts
        return ChatText(text[:end], marks is not None and marks.is_left_open_in(last["content"]))

    def _opened(self, text: str, chat: Chat) -> ChatText:
        """A thought that the template opens is closed again if the answer has a form to keep to."""
        marks = self._style.thoughts
        if marks is None or not chat.opens_answer or not marks.is_open_at_end_of(text):
            return ChatText(text)
        if chat.may_think:
            return ChatText(text, opens_thought=True)
        if not text.rstrip().endswith(marks.start):
            return ChatText(text)
        return ChatText(f"{text.rstrip()}\n\n{marks.end}\n\n")


def make_chat(
    messages: Sequence[Message],
    use: ToolUse,
    variables: dict[str, Any],
    *,
    opens_answer: bool | None,
    continues_last: bool | None,
    may_think: bool = True,
) -> Chat:
    """Raises ApiError if the answer is to be opened and the last message to be continued."""
    if opens_answer and continues_last:
        raise bad_request(
            "add_generation_prompt", "'add_generation_prompt' does not go with 'continue_final_message'."
        )
    if not may_think:
        variables.setdefault("enable_thinking", False)
    return Chat(
        messages=messages,
        use=use,
        variables=variables,
        opens_answer=not continues_last if opens_answer is None else opens_answer,
        continues_last=bool(continues_last),
        may_think=may_think,
    )


def check_variables(kwargs: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """Variables for the template from ``chat_template_kwargs`` and ``reasoning_effort``. Raises ApiError."""
    param = "chat_template_kwargs"
    variables = dict(kwargs or {})
    if len(variables) > _MAX_VARIABLES:
        raise bad_request(param, f"'{param}' must not have more than {_MAX_VARIABLES} entries.")
    if RESERVED & variables.keys():
        raise bad_request(param, f"'{param}' must not set {', '.join(sorted(RESERVED))}.")
    if effort is None:
        return variables
    if effort not in EFFORTS:
        raise bad_request("reasoning_effort", f"'reasoning_effort' must be one of {', '.join(EFFORTS)}.")
    variables.setdefault("reasoning_effort", effort)
    if effort == "none":
        variables.setdefault("enable_thinking", False)
    return variables


def _marked_to_continue(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "assistant" or "tool_calls" in message:
        raise bad_request(
            "continue_final_message",
            "'continue_final_message' needs an assistant's message without tool calls as the last one.",
        )
    return {**message, "content": message["content"] + _CONTINUED_HERE}
