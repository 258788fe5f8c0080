"""The gguf library's reader, without what makes it slow: one array object for every word of a vocabulary.

Runs on: step thread, once. What nobody here asks a file for, its lists of strings, is stepped over; a list of
numbers is one array. On a vocabulary of 49,152 that is a tenth of a second instead of two.
"""

from __future__ import annotations

import struct
from typing import Any

import gguf
import numpy as np
from gguf import GGUFEndian, GGUFValueType

_ARRAY_HEADER_BYTES = 12  # the type of the items and their number
_STRING_LENGTH_BYTES = 8

FieldParts = tuple[int, list[Any], list[int], list[GGUFValueType]]


class LeanReader(gguf.GGUFReader):  # type: ignore[misc]
    """A field that is a list of strings is there, with its types, and has no contents.

    Overrides a step that the library keeps to itself: should that get another name there, its own is used.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> FieldParts:
        """Size in bytes, arrays, which of these are the data, and types."""
        if raw_type != GGUFValueType.ARRAY:
            return self._as_usual(orig_offs, raw_type)
        item = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + _ARRAY_HEADER_BYTES
        types = [GGUFValueType.ARRAY, item]
        if item == GGUFValueType.STRING:
            return self._end_of_strings(start, count) - orig_offs, [], [], types
        scalar = self.gguf_scalar_to_np.get(item)
        if scalar is None or count == 0:
            return self._as_usual(orig_offs, raw_type)
        values = self._get(start, scalar, count)
        return _ARRAY_HEADER_BYTES + int(values.nbytes), [values], [0], types

    def _as_usual(self, offset: int, raw_type: int) -> FieldParts:
        parts: FieldParts = super()._get_field_parts(offset, raw_type)
        return parts

    def _end_of_strings(self, offset: int, count: int) -> int:
        """Raises ``struct.error`` where the file ends before."""
        length = struct.Struct("<Q" if self.endianess == GGUFEndian.LITTLE else ">Q")
        content = memoryview(self.data)
        for _ in range(count):
            offset += _STRING_LENGTH_BYTES + length.unpack_from(content, offset)[0]
        return offset
