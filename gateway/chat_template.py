"""Messages to prompt text through the model's own jinja template.

Runs on offload threads. The environment is jinja's immutable sandbox with the helpers that Hugging
Face templates count on (raise_exception, strftime_now, tojson, loop controls, generation blocks).
Bounds: rendering stops at a number of characters and at a deadline, both checked between the pieces
that the template yields. Whatever goes wrong inside a template is a TemplateRenderError.
"""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Variables that are the server's to set.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
_NO_VARIABLES: Mapping[str, Any] = {}
_MAX_PROBE_CHARS = 100_000


class TemplateRenderError(ValueError):
    """The template refused the messages or failed on them. The message may be shown to the client."""


class PromptTooLargeError(ValueError):
    """The rendered text passed its bound. ``max_chars`` is the bound."""

    def __init__(self, max_chars: int) -> None:
        super().__init__(f"the rendered prompt is longer than {max_chars} characters")
        self.max_chars = max_chars


class ChatTemplate:
    """One compiled template. Raises TemplateRenderError from the constructor if it does not parse."""

    def __init__(
        self, source: str, *, bos_token: str | None, eos_token: str | None, time_limit_s: float = 10.0
    ) -> None:
        self._time_limit_s = time_limit_s
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self.source = source
        self.knows_developer = "developer" in source
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise TemplateRenderError(f"The model's chat template cannot be read: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_chars: int,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        opens_answer: bool = True,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> str:
        """The prompt, up to and including what opens the assistant's answer unless ``opens_answer`` is False.

        ``variables`` are the caller's own; none of ``RESERVED`` may be among them.
        """
        deadline = time.monotonic() + self._time_limit_s
        known = {**variables, "messages": messages, "add_generation_prompt": opens_answer, "tools": tools}
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate({"documents": None, **known, **self._tokens}):
                pieces.append(piece)
                size += len(piece)
                if size > max_chars:
                    raise PromptTooLargeError(max_chars)
                if time.monotonic() > deadline:
                    raise TemplateRenderError("The chat template took too long over these messages.")
        except (TemplateRenderError, PromptTooLargeError):
            raise
        except jinja2.TemplateError as error:
            raise TemplateRenderError(error.message or "The chat template refused the messages.") from error
        except Exception as error:  # a template is a program: any type can come out of it
            kind = type(error).__name__
            raise TemplateRenderError(f"The chat template cannot handle these messages ({kind}).") from error
        return "".join(pieces)

    @functools.cached_property
    def wants_argument_strings(self) -> bool:
        """Whether it takes the arguments of calls in a conversation as JSON text, and not as objects."""
        return not self._shows_call({"x": 1}) and self._shows_call('{"x": 1}')

    def _shows_call(self, arguments: Any) -> bool:
        function = {"name": "f", "arguments": arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "b"},
        ]
        try:
            self.render(messages, _MAX_PROBE_CHARS)
        except (TemplateRenderError, PromptTooLargeError):
            return False
        return True


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's text for training; here it only passes it through."""

    tags = {"generation"}  # noqa: RUF012 - jinja reads the class attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja's own filter escapes for HTML, which models have not seen in training."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
