"""Counts what a call does, exactly and without a clock: bytecode of ours, and elements read of containers.

Bytecode tells of loops in Python. Of what is done inside C, as by ``tuple(queue)``, ``sorted`` or a
comparison of lists, it tells nothing: so before the call all lists, tuples, dicts, sets and deques that hang
from the engine's objects are exchanged for ones that count what is read of them. Containers that the call
makes are not counted, but what is put into them was read somewhere.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

_ROOT = Path(__file__).parent.parent.parent
_OURS = tuple(f"{_ROOT / package}/" for package in ("engine", "tiering"))
_PACKAGES = ("engine", "tiering")
_DEPTH = 1000  # elements of a container that are looked into; the rest are like them
_WHOLE = {  # reads all there is, or as much in the worst case
    list: ("__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "__add__", "__mul__", "__contains__",
           "copy", "count", "index", "insert", "remove", "reverse", "sort"),
    tuple: ("__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "__hash__", "__add__", "__mul__",
            "__contains__", "count", "index"),
    deque: ("__eq__", "__ne__", "__add__", "__contains__", "copy", "count", "index", "insert", "remove"),
    dict: ("__eq__", "__ne__", "__or__", "__ror__", "copy"),
    set: ("__eq__", "__ne__", "__or__", "__and__", "__sub__", "__xor__", "copy", "union", "intersection",
          "difference", "issubset", "issuperset", "isdisjoint"),
}  # fmt: skip


class _Tally:
    """How many elements were read. One a process: containers that count it outlive a call."""

    elements = 0


@dataclass(frozen=True, slots=True)
class Operations:
    """What a call did. ``bytecodes`` are those of ``engine`` and ``tiering``."""

    bytecodes: int
    elements: int

    @property
    def total(self) -> int:
        return self.bytecodes + self.elements


def count(root: object, call: Callable[[], object]) -> Operations:
    """What ``call`` does with ``root`` and all that hangs from it."""
    _instrument(root)
    bytecodes = 0

    def on_bytecode(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal bytecodes
        bytecodes += event == "opcode"
        return on_bytecode

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_bytecode

    before, tracer = _Tally.elements, sys.gettrace()
    sys.settrace(on_call)
    try:
        call()
    finally:
        sys.settrace(tracer)
    return Operations(bytecodes, _Tally.elements - before)


# ---- containers that count -----------------------------------------------------------------------


def _each(elements: Iterable[Any]) -> Iterator[Any]:
    for element in elements:
        _Tally.elements += 1
        yield element


def _view(kind: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda self: kind(self)


def _counted_type(kind: type) -> type:
    def whole(name: str) -> Callable[..., Any]:
        plain = getattr(kind, name)

        def method(self: Any, *args: Any, **options: Any) -> Any:
            _Tally.elements += len(self)
            return plain(self, *args, **options)

        return method

    def get(self: Any, key: Any) -> Any:
        found = kind.__getitem__(self, key)  # type: ignore[attr-defined]
        _Tally.elements += len(found) if isinstance(key, slice) else 1
        return found

    methods: dict[str, Any] = {name: whole(name) for name in _WHOLE[kind]}
    methods["__iter__"] = lambda self: _each(kind.__iter__(self))  # type: ignore[attr-defined]
    if kind is not set:
        methods["__getitem__"] = get
    if kind in (list, deque, dict):
        methods["__hash__"] = None
        methods["__reversed__"] = lambda self: _each(kind.__reversed__(self))  # type: ignore[attr-defined]
    if kind is dict:
        for name, view in (("keys", KeysView), ("values", ValuesView), ("items", ItemsView)):
            methods[name] = _view(view)
    return type(f"Counted{kind.__name__.title()}", (kind,), methods)


_COUNTED = {kind: _counted_type(kind) for kind in _WHOLE}


# ---- putting them in -----------------------------------------------------------------------------


def _instrument(root: object) -> None:
    """Exchange all plain containers in our objects that can be reached from ``root``."""
    exchange = _Exchange()
    seen: dict[int, object] = {}
    todo: list[object] = [root]
    while todo:
        owner = todo.pop()
        if id(owner) not in seen:
            seen[id(owner)] = owner
            todo += exchange.inside(owner)


class _Exchange:
    """Puts counting containers in the place of plain ones, the same one wherever the same one was."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[object, object]] = {}

    def inside(self, owner: Any) -> list[object]:
        """What an object or container holds, after the exchange. Messages are left as they are."""
        if isinstance(owner, (dict, list, deque)):
            pairs = owner.items() if isinstance(owner, dict) else enumerate(owner)
            return [self._put(value, owner, key) for key, value in list(islice(pairs, _DEPTH))]
        if isinstance(owner, (tuple, set)):
            return list(islice(owner, _DEPTH))
        if type(owner).__module__.partition(".")[0] in _PACKAGES and not isinstance(owner, msgspec.Struct):
            return [self._set(getattr(owner, name, None), owner, name) for name in _fields(owner)]
        return []

    def _put(self, value: object, owner: Any, key: Any) -> object:
        counted = self._of(value)
        if counted is not value:
            owner[key] = counted
        return counted

    def _set(self, value: object, owner: object, name: str) -> object:
        counted = self._of(value)
        if counted is not value:
            object.__setattr__(owner, name, counted)
        return counted

    def _of(self, value: object) -> object:
        kind = _COUNTED.get(type(value))
        if kind is None:
            return value
        return self._counted.setdefault(id(value), (value, kind(value)))[1]


def _fields(owner: object) -> list[str]:
    slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(owner, "__dict__", ())]
