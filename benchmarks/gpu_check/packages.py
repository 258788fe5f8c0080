"""Which packages the check needs, and which of them are not installed: told before a card's time is spent.
Imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

_TO_BEGIN = ("msgspec", "rich", "torch")
_OTHERS = (
    "numpy", "triton", "transformers", "safetensors", "tokenizers", "jinja2", "llguidance", "gguf", "xxhash",
    "uvloop", "numba", "llvmlite", "hypothesis", "sortedcontainers", "pytest", "pytest_asyncio",
    "pytest_timeout",
)  # fmt: skip
_TOO_NEW_NUMPY = (2, 4)


def missing(is_there: Callable[[str], object] = find_spec) -> list[str]:
    """Those that are not installed, by the names that pip knows; first those that it cannot begin without."""
    return [name.replace("_", "-") for name in (*_TO_BEGIN, *_OTHERS) if is_there(name) is None]


def can_begin(without: list[str]) -> bool:
    """Whether there is what the check itself needs; what others need fails where it is needed."""
    return not set(without) & set(_TO_BEGIN)


def is_too_new_to_interpret(numpy_version: str) -> bool:
    """Whether Triton's interpreter, which a dry run needs, does not get on with it."""
    major, minor = (int(number) for number in numpy_version.split(".")[:2])
    return (major, minor) >= _TOO_NEW_NUMPY


def told(without: list[str]) -> str:
    """One sentence on what is not there, and what to do."""
    names = ", ".join(without)
    consequence = "what needs it fails" if can_begin(without) else "the check cannot begin"
    return f"not installed: {names}; {consequence} (pip install --no-deps {' '.join(without)}; docs/gpu.md)."
