"""Notes on the fields of wire structs: what their JSON types do not say. For the checks and /openapi.json.

Pure. A field's type is ``Annotated`` with a ``Range``, which its check reads too, with ``told``, ``Exactly``
or ``REQUIRED``. A field of type ``Any`` must say by those what it may be, or be ``Ignored``, or stand in
``NEUTRAL`` (``wire.py``). Nothing of this is checked while a body is parsed: the checks behind that have
the better sentences.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from gateway.openai.ranges import Range


class Figure(enum.StrEnum):
    """What only a running server knows. In a schema it stands for its value there."""

    MODEL_NAMES = "figure:model_names"
    WINDOW = "figure:window"
    LAST_TOKEN_ID = "figure:last_token_id"
    MAX_CHOICES = "figure:max_choices"


class Required(enum.Enum):
    """Optional for the parser only, so that the check can say what is missing."""

    REQUIRED = enum.auto()


REQUIRED = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Exactly:
    """All of a field's schema, where its type says too little for notes to help."""

    schema: dict[str, Any]


def told(description: str | None = None, /, **keywords: Any) -> msgspec.Meta:
    """A description and JSON Schema keywords, which may hold a ``Figure``."""
    return msgspec.Meta(description=description, extra_json_schema=keywords or None)


def one_of(values: Iterable[Any]) -> msgspec.Meta:
    """The field has one of these values."""
    return told(enum=list(values))


def hints_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of a struct's fields, with their notes."""
    return get_type_hints(struct, include_extras=True)


def ranges_of(struct: type[msgspec.Struct]) -> dict[str, Range]:
    """By field, for those that have one."""
    return {
        name: note
        for name, hint in hints_of(struct).items()
        for note in get_args(hint)
        if isinstance(note, Range)
    }


Ignored = Annotated[Any, told("Accepted without effect.")]
TokenId = Annotated[int, told(minimum=0, maximum=Figure.LAST_TOKEN_ID)]
ModelName = Annotated[str | None, told("Left out: the first of them.", enum=Figure.MODEL_NAMES)]
