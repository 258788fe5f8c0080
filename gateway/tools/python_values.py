"""Python literals to values that JSON has: what a call ``f(a=1, b="x")`` may have as its arguments. Pure.

Not Python's own parser, because that compiles, warns, and has no bound on depth. JSON's ``true``, ``false``
and ``null`` are taken too, since models mix them up.
"""

from __future__ import annotations

import math
import re

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
    |(?P<mark>[()\[\]{}:,=])
    |(?P<end>$))""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{1,3}|\n|.)", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}
_MAX_DEPTH = 64


class NoLiteralError(ValueError):
    """The text is no call with literal keyword arguments."""


def keyword_arguments(text: str) -> dict[str, object]:
    """Values of ``(name=literal, ...)``, the parentheses included. Raises NoLiteralError."""
    source = _Source(text)
    source.expect("(")
    values: dict[str, object] = {}
    while not source.accept(")"):
        if values:
            source.expect(",")
            if source.accept(")"):
                break
        name = source.take("name")
        source.expect("=")
        values[name] = _value(source, 0)
    source.take("end")
    return values


class _Source:
    """The tokens of a text, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._pos)
        if match is None or match.lastgroup is None:
            raise NoLiteralError
        self.kind, self.token = match.lastgroup, match.group(match.lastgroup)
        self._pos = match.end()

    def accept(self, mark: str) -> bool:
        """Go past this mark if it comes next."""
        if self.kind != "mark" or self.token != mark:
            return False
        self._advance()
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise NoLiteralError

    def take(self, kind: str) -> str:
        token = self.token
        if self.kind != kind:
            raise NoLiteralError
        if kind != "end":
            self._advance()
        return token


def _value(source: _Source, depth: int) -> object:
    if depth > _MAX_DEPTH:
        raise NoLiteralError
    if source.kind == "string":
        parts = [_string(source.take("string"))]
        while source.kind == "string":  # neighbours are one string
            parts.append(_string(source.take("string")))
        return "".join(parts)
    if source.kind == "number":
        return _number(source.take("number"))
    if source.kind == "name":
        name = source.take("name")
        if name not in _CONSTANTS:
            raise NoLiteralError
        return _CONSTANTS[name]
    opening = source.take("mark")
    if opening not in _CLOSING:
        raise NoLiteralError
    return _dict(source, depth) if opening == "{" else _list(source, _CLOSING[opening], depth)


def _list(source: _Source, closing: str, depth: int) -> object:
    values: list[object] = []
    num_commas = 0
    while not source.accept(closing):
        if values:
            source.expect(",")
            num_commas += 1
            if source.accept(closing):
                break
        values.append(_value(source, depth + 1))
    return values[0] if closing == ")" and len(values) == 1 and not num_commas else values


def _dict(source: _Source, depth: int) -> dict[str, object]:
    values: dict[str, object] = {}
    while not source.accept("}"):
        if values:
            source.expect(",")
            if source.accept("}"):
                break
        key = _value(source, depth + 1)
        if not isinstance(key, str):
            raise NoLiteralError
        source.expect(":")
        values[key] = _value(source, depth + 1)
    return values


def _number(token: str) -> object:
    try:
        number = int(token) if token.lstrip("+-").isdigit() else float(token)
    except ValueError:  # longer than int reads
        raise NoLiteralError from None
    if not math.isfinite(number):
        raise NoLiteralError
    return number


def _string(token: str) -> str:
    return _ESCAPE.sub(_unescaped, token[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if code in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[code]
    if len(code) > 1 and code[0] in "xuU":
        number = int(code[1:], 16)
    elif code[0] in "01234567":
        number = int(code, 8)
    else:  # a quote, a backslash, or what Python leaves as it is
        return code if code in "'\"\\" else match.group()
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise NoLiteralError
    return chr(number)
