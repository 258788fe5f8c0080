"""How the served model calls tools and thinks aloud, as far as this server can tell.

Pure. Chosen once, at the start, from the settings and what the chat template shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.chat_template import ChatTemplate
from gateway.thoughts import AUTO, NONE, ThoughtMarks, marks_of
from gateway.tools.registry import (
    HERMES,
    ToolFamily,
    ToolParserError,
    check_parser,
    family_named,
    family_of,
)


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """``tools`` and ``thoughts`` are None if the server does not tell such things from other text.

    ``tools_in_text``: the template shows neither tools nor calls, so they become text of messages.
    """

    tools: ToolFamily | None = None
    thoughts: ThoughtMarks | None = None
    tools_in_text: bool = True


def choose_style(
    template: ChatTemplate | None, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO
) -> ChatStyle:
    """Raises ToolParserError or ReasoningParserError for settings that do not fit."""
    source = None if template is None else template.source
    thoughts = marks_of(reasoning_parser, source)
    if template is None or tool_call_parser == NONE:
        check_parser(tool_call_parser)
        in_text = template is None or "tools" not in template.variables
        return ChatStyle(None, thoughts, in_text)
    if "tools" not in template.variables:
        if tool_call_parser not in (AUTO, HERMES.name):
            raise ToolParserError(
                "The model's chat template does not show tools, so they are described in the form that hermes"
                f" reads; the tool-call parser {tool_call_parser} does not go with that."
            )
        return ChatStyle(HERMES, thoughts)
    family = family_of(template.source) if tool_call_parser == AUTO else family_named(tool_call_parser)
    # A template with a form of calls that we cannot read is passed by: the model gets ours instead.
    return ChatStyle(family or HERMES, thoughts, tools_in_text=family is None)
