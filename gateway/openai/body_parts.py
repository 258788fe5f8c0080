"""How much a JSON body would make of Python objects, told before anything is made of it.

Pure; runs on offload threads. A body is decoded in one go, in which no other thread runs, so what that may
cost is bounded. What is inside strings does not count: a text may be as long as a body and say anything.
"""

from __future__ import annotations

from gateway.errors import bad_request

MAX_PARTS = 100_000
"""Strings (keys too), lists and objects: some 0.3 µs each."""
MAX_COMMAS = 600_000
"""Values of any kind that follow another; numbers take some 0.03 µs each."""


def check_parts(body: bytes) -> None:
    """Refuse a body that is more than so many values. Raises ApiError.

    If it is no valid JSON, that holds of it as far as it is. No step of this takes long by itself.
    """
    if _fits(body.count(b'"') // 2, body):  # with what is inside strings it can only seem more
        return
    bare = body
    if b"\\" in body:
        bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left begins a string or ends one
    num_strings = bare.count(b'"') // 2
    if num_strings > MAX_PARTS or not _fits(num_strings, b"".join(bare.split(b'"')[::2])):
        raise bad_request(
            None,
            f"The request body has more than {MAX_PARTS} strings, lists and objects,"
            f" or more than {MAX_COMMAS} values.",
        )


def _fits(num_strings: int, outside: bytes) -> bool:
    """``outside`` is what stands outside of strings."""
    num_parts = num_strings + outside.count(b"[") + outside.count(b"{")
    return num_parts <= MAX_PARTS and outside.count(b",") <= MAX_COMMAS
