"""JSON Schemas of wire structs, with what their notes add (``notes.py``), for one server.

Pure. What a client may send: fields with their ranges, required where the checks require them. What is
answered: every field is there unless its type says that it can be left out, and there are no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, get_args

import msgspec
from msgspec import UnsetType

from gateway.openai.notes import REQUIRED, Exactly, Figure, hints_of, ranges_of
from gateway.openai.wire import NEUTRAL

Schema = dict[str, Any]
Struct = type[msgspec.Struct]
Hint = Struct | UnionType
"""One struct, or several of which it is one."""
Figures = Mapping[Figure, Any]
_REF = "#/components/schemas/"
_FIGURES = frozenset(Figure)


def ref(hint: Hint) -> Schema:
    """Refers to a struct's schema among the document's components, or to those of several."""
    if isinstance(hint, UnionType):
        return {"anyOf": [ref(struct) for struct in get_args(hint)]}
    return {"$ref": f"{_REF}{hint.__name__}"}


def component_schemas(asked: Iterable[Struct], answered: Iterable[Hint], figures: Figures) -> Schema:
    """By name, the schemas of the structs that are asked with and answered with, and of all inside them."""
    bodies = set(asked)
    requests, answers = structs_in(bodies), structs_in(answered)
    assert not requests & answers, requests & answers
    structs = sorted(requests | answers, key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF + "{name}")
    assert len(schemas) == len(structs), "two structs have the same name"
    for struct in structs:
        if struct in answers:
            _finish_answer(schemas[struct.__name__], struct)
            continue
        _finish_request(schemas[struct.__name__], struct)
        if struct in bodies:
            _add_neutral(schemas[struct.__name__]["properties"])
    found: Schema = _with_figures(schemas, figures)
    return found


def structs_in(roots: Iterable[Hint]) -> set[Struct]:
    """These structs and all that their fields refer to."""
    found: set[Struct] = set()
    todo: list[Any] = list(roots)
    while todo:
        hint = todo.pop()
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            if hint not in found:
                found.add(hint)
                todo += hints_of(hint).values()
        else:
            todo += get_args(hint)
    return found


def _finish_request(schema: Schema, struct: Struct) -> None:
    properties = schema["properties"]
    for name, allowed in ranges_of(struct).items():
        properties[name].update(allowed.schema)
    for name, hint in hints_of(struct).items():
        notes = get_args(hint)
        if REQUIRED in notes:
            properties[name] = _without_null(properties[name])
            schema["required"].append(name)
        for note in notes:
            if isinstance(note, Exactly):
                properties[name] = note.schema


def _add_neutral(properties: Schema) -> None:
    for name in properties.keys() & NEUTRAL.keys():
        properties[name] = {
            "description": "Not supported; accepted at values that change nothing.",
            "enum": [*NEUTRAL[name], None],
            "default": None,
        }


def _without_null(schema: Schema) -> Schema:
    """Of a field that the parser takes for optional."""
    kept = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    return {**kept, **options[0]} if len(options) == 1 else {**kept, "anyOf": options}


def _finish_answer(schema: Schema, struct: Struct) -> None:
    tag = struct.__struct_config__.tag_field
    named = [name for name, hint in hints_of(struct).items() if UnsetType not in get_args(hint)]
    schema["required"] = named if tag is None else [tag, *named]
    schema["additionalProperties"] = False
    for field in schema["properties"].values():
        field.pop("default", None)


def _with_figures(value: Any, figures: Figures) -> Any:
    """The same with each ``Figure`` replaced by what it is on this server."""
    if isinstance(value, str):
        return figures[Figure(value)] if value in _FIGURES else value
    if isinstance(value, dict):
        return {key: _with_figures(item, figures) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_figures(item, figures) for item in value]
    return value
