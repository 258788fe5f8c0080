"""Why a grammar cannot be used, in a sentence for whoever sent it. Pure.

The library's own messages quote the grammar, and grammars are user input; so only what is known to come from
the library passes: keywords of JSON schema, positions, and the fixed phrases of the regex parser.
"""

from __future__ import annotations

import re

TOO_SLOW = "The grammar takes too long to compile; simplify it."
TOO_LARGE = "The grammar is too large or too complex to compile; simplify it."
IMPOSSIBLE = "No text can satisfy the grammar."
GONE_ASTRAY = "The grammar grew too complex while the answer was generated; simplify it."
NO_TOKENIZER = "This model's tokenizer cannot be used with grammars."
NO_END = "This model has no end-of-text token, so no grammar could end its answers."

_NAMES = {
    "json_schema": "The JSON schema",
    "regex": "The regular expression",
    "lark": "The grammar",
}
_KEYWORDS = re.compile(r"Unimplemented keys: \[(?P<names>[^\]]*)\]")
_KEYWORD = re.compile(r'"(\$?[A-Za-z]{1,32})"')
_REGEX_PHRASE = re.compile(r"^error: (?P<phrase>[a-z][A-Za-z ,()'-]{2,100})$", re.MULTILINE)
_POSITION = re.compile(r"^(?:at )?(?P<line>\d{1,6})\((?P<column>\d{1,6})\)")
_MARKS = (
    (("recursion limit", "too deeply nested"), "{name} is nested too deeply."),
    (("too big", "too large", "too many", "Too many", "max is", "precomputation failed", "fuel"), TOO_LARGE),
    (("Unsatisfiable", "NoExtension"), IMPOSSIBLE),
    (("not present in a registry",), "A '$ref' points out of the schema; nothing is fetched from elsewhere."),
    (("Pointer", "Anchor", "anchor"), "A '$ref' points to nothing in the schema."),
    (("Unknown format",), "{name} has a 'format' that is not supported."),
    (("Invalid type", "type must be"), "{name} has a 'type' that does not exist."),
    (("must be an object or boolean",), "{name} has something that is not a schema where one is due."),
    (("oneOf constraints",), "{name} has a 'oneOf' whose cases cannot be told apart; use 'anyOf'."),
    (("multipleOf",), "{name} has a 'multipleOf' with too many digits."),
    (("Unable to determine", "can't determine"), "{name} combines patterns in a way that is not supported."),
)


def explain(kind: str, message: str) -> str:
    """A plain sentence for what the library said of a grammar of that kind."""
    name = _NAMES[kind]
    keywords = _KEYWORDS.search(message)
    if keywords:
        names = ", ".join(_KEYWORD.findall(keywords["names"])[:8])
        return f"{name} uses keywords that are not supported: {names}."
    if "regex parse error" in message:
        phrase = _REGEX_PHRASE.search(message)
        part = "" if kind == "regex" else " has a pattern that"
        return f"{name}{part} cannot be read: {phrase['phrase'] if phrase else 'it is not valid'}."
    for marks, sentence in _MARKS:
        if any(mark in message for mark in marks):
            return sentence.format(name=name)
    position = _POSITION.match(message) if kind == "lark" else None
    where = f" (line {position['line']}, column {position['column']})" if position else ""
    return f"{name} is not valid, or not supported{where}."
