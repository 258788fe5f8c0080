"""What the CPU kernels have for their innermost loops, as LLVM's vector instructions.

numba's loops become vector code only where LLVM finds out how by itself. For a transposition, and for
rows that share the loads of a matrix, it does not. A vector has 16 lanes; where registers are narrower,
LLVM takes several. Sums are in the order that is stated, products rounded as by ``multiply_add``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import float32, types
from numba.core import cgutils

from engine.compiled.jit import has_fma, has_wide_registers, intrinsic

LANES = 16
_MAX_ROWS = 4  # that share the loads of a matrix
_CACHE_LINE_BYTES = 64
_INT, _WORD, _HALF, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.FloatType()
_WORDS, _HALVES, _FLOATS = (ir.VectorType(element, LANES) for element in (_WORD, _HALF, _FLOAT))


@intrinsic
def multiply_add(_: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of float32, rounded once if the CPU has an instruction for it, else twice."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _multiply_add(context, builder, *values)

    return float32(float32, float32, float32), emit


@intrinsic
def load_transposed(_: Any, source: Any, target: Any) -> Any:
    """``target[:, :16] = source.T`` for ``source`` ``[16, D]``, float32 or bf16 bits, and float32 ``target``.

    D is a multiple of 16. Rows are read as 32-bit words, of which bf16 has two numbers each.
    """

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows, columns = (_Matrix.of(context, builder, signature, values, index) for index in (0, 1))
        per_word = 4 // rows.item_bytes
        whole = builder.udiv(rows.width, _int(LANES * per_word))
        with cgutils.for_range(builder, whole, intp=_INT) as loop:
            _transpose(builder, rows, columns, builder.mul(loop.index, _int(LANES * per_word)), LANES)
        if per_word == 2:
            first = builder.mul(whole, _int(LANES * per_word))
            with builder.if_then(builder.icmp_unsigned("<", first, rows.width)):
                _transpose(builder, rows, columns, first, LANES // per_word)
        return context.get_dummy_value()

    return types.void(source, target), emit


@intrinsic
def add_products(_: Any, rows: Any, matrix: Any, out: Any) -> Any:
    """``out[:, :W] += rows @ matrix`` for ``rows`` ``[R, N]`` and ``matrix`` ``[N, W]``, W a multiple of 16.

    ``matrix`` is float32 or bf16 bits, the others are float32. An element's sum begins with what ``out``
    has and goes through N from the first on. Of up to four rows each vector of the matrix is loaded once.
    """

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        matrices = tuple(_Matrix.of(context, builder, signature, values, index) for index in range(3))
        num_rows = matrices[0].height
        whole = builder.udiv(num_rows, _int(_MAX_ROWS))
        with cgutils.for_range(builder, whole, intp=_INT) as loop:
            _add_products(context, builder, matrices, builder.mul(loop.index, _int(_MAX_ROWS)), _MAX_ROWS)
        first = builder.mul(whole, _int(_MAX_ROWS))
        rest = builder.sub(num_rows, first)
        for count in range(1, _MAX_ROWS):
            with builder.if_then(builder.icmp_unsigned("==", rest, _int(count))):
                _add_products(context, builder, matrices, first, count)
        return context.get_dummy_value()

    return types.void(rows, matrix, out), emit


@intrinsic
def largest(_: Any, rows: Any, row: Any) -> Any:
    """The largest of ``rows[row]`` but for NaN; float32 ``rows`` ``[R, W]``, W a multiple of 16."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        matrix, index = _Matrix.of(context, builder, signature, values, 0), values[1]
        lowest = ir.Constant(_FLOATS, [float("-inf")] * LANES)
        best = cgutils.alloca_once_value(builder, lowest)
        with cgutils.for_range_slice(builder, _int(0), matrix.width, _int(LANES), _INT) as (column, _):
            vector = matrix.load(builder, index, column, _FLOATS)
            builder.store(_larger(builder, vector, builder.load(best)), best)
        top, width = builder.load(best), LANES // 2
        while width:
            top = _larger(builder, _shuffle(builder, top, top, [lane ^ width for lane in range(LANES)]), top)
            width //= 2
        return builder.extract_element(top, ir.Constant(_WORD, 0))

    return float32(rows, types.int64), emit


@intrinsic
def prefetch(_: Any, rows: Any) -> Any:
    """Begin to read the contiguous ``rows`` ``[N, D]`` into the cache."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        matrix = _Matrix.of(context, builder, signature, values, 0)
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        end = builder.mul(matrix.height, matrix.stride)
        with cgutils.for_range_slice(builder, _int(0), end, _int(_CACHE_LINE_BYTES), _INT) as (offset, _):
            place = builder.inttoptr(builder.add(matrix.address, offset), byte)
            builder.call(function, [place, *(ir.Constant(_WORD, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(rows), emit


class _Matrix(NamedTuple):
    """An array ``[height, width]`` with contiguous rows, ``stride`` bytes apart."""

    address: Any
    stride: Any
    height: Any
    width: Any
    item_bytes: int

    @classmethod
    def of(cls, context: Any, builder: Any, signature: Any, values: Any, index: int) -> _Matrix:
        kind = signature.args[index]
        array = context.make_array(kind)(context, builder, values[index])
        height, width = cgutils.unpack_tuple(builder, array.shape)
        stride, _ = cgutils.unpack_tuple(builder, array.strides)
        address = builder.ptrtoint(array.data, _INT)
        return cls(address, stride, height, width, kind.dtype.bitwidth // 8)

    def place(self, builder: Any, row: Any, column: Any, kind: Any) -> Any:
        """Pointer to a ``kind`` that begins at an element."""
        offset = builder.add(builder.mul(row, self.stride), builder.mul(column, _int(self.item_bytes)))
        return builder.inttoptr(builder.add(self.address, offset), kind.as_pointer())

    def load(self, builder: Any, row: Any, column: Any, kind: Any) -> Any:
        """The ``kind`` that begins at an element, aligned as the element is."""
        loaded = builder.load(self.place(builder, row, column, kind))
        loaded.align = self.item_bytes
        return loaded

    def load_floats(self, builder: Any, row: Any, column: Any) -> Any:
        """16 numbers, widened to float32."""
        if self.item_bytes == 4:
            return self.load(builder, row, column, _FLOATS)
        words = builder.zext(self.load(builder, row, column, _HALVES), _WORDS)
        return builder.bitcast(builder.shl(words, _words(16)), _FLOATS)

    def store(self, builder: Any, row: Any, column: Any, floats: Any) -> None:
        stored = builder.store(builder.bitcast(floats, _FLOATS), self.place(builder, row, column, _FLOATS))
        stored.align = self.item_bytes


def _int(value: int) -> Any:
    return ir.Constant(_INT, value)


def _words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * LANES)


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """``lanes`` of ``a`` followed by ``b``."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes))


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """Lane by lane; ``b`` beside a NaN in ``a``."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _multiply_add(context: Any, builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Of numbers or of vectors."""
    if not has_fma(context):
        return builder.fadd(builder.fmul(a, b), c)
    if c.type is not _FLOATS:
        return builder.fma(a, b, c)
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [a, b, c])


def _transpose(builder: Any, rows: _Matrix, columns: _Matrix, first: Any, count: int) -> None:
    """``count`` words, 8 or 16, of each of 16 rows from column ``first`` on, to as many columns.

    An element's place is the number of its vector followed by its lane, in bits: it has the bits of its
    row, then those of its column. To interleave the two halves of all vectors turns these bits to the
    left by one. After four times those of the row are the lane.
    """
    per_vector, per_word = LANES // count, 4 // rows.item_bytes
    kind = ir.VectorType(_WORD, count)
    parts = [rows.load(builder, _int(row), first, kind) for row in range(LANES)]
    if per_vector == 2:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [_shuffle(builder, a, b, list(range(LANES))) for a, b in pairs]
    low = [lane for pair in zip(range(8), range(16, 24), strict=True) for lane in pair]
    high = [lane + LANES // 2 for lane in low]
    for _ in range(LANES.bit_length() - 1):
        pairs = zip(parts[: count // 2], parts[count // 2 :], strict=True)
        parts = [_shuffle(builder, a, b, lanes) for a, b in pairs for lanes in (low, high)]
    for index, words in enumerate(parts):
        column = builder.add(first, _int(index * per_word))
        if per_word == 1:
            columns.store(builder, column, _int(0), words)
        else:
            columns.store(builder, column, _int(0), builder.shl(words, _words(16)))
            odd = builder.and_(words, _words(0xFFFF0000))
            columns.store(builder, builder.add(column, _int(1)), _int(0), odd)


def _add_products(
    context: Any, builder: Any, matrices: tuple[_Matrix, ...], first: Any, num_rows: int
) -> None:
    """Of ``num_rows`` rows from ``first`` on: as many vectors of each at a time as registers can hold."""
    at_a_time = 4 if has_wide_registers(context) else 1
    width = matrices[1].width
    whole = builder.udiv(width, _int(at_a_time * LANES))
    with cgutils.for_range(builder, whole, intp=_INT) as loop:
        column = builder.mul(loop.index, _int(at_a_time * LANES))
        _add_products_of_columns(context, builder, matrices, first, num_rows, column, at_a_time)
    if at_a_time > 1:
        start = builder.mul(whole, _int(at_a_time * LANES))
        with cgutils.for_range_slice(builder, start, width, _int(LANES), _INT) as (column, _):
            _add_products_of_columns(context, builder, matrices, first, num_rows, column, 1)


def _add_products_of_columns(
    context: Any, builder: Any, matrices: tuple[_Matrix, ...],
    first: Any, num_rows: int, column: Any, num_vectors: int,
) -> None:  # fmt: skip
    """With the sums in registers: ``num_rows`` times ``num_vectors`` of them."""
    weights, matrix, out = matrices
    rows = [builder.add(first, _int(row)) for row in range(num_rows)]
    columns = [builder.add(column, _int(index * LANES)) for index in range(num_vectors)]
    sums = [[cgutils.alloca_once(builder, _FLOATS) for _ in columns] for _ in rows]
    for row, row_sums in zip(rows, sums, strict=True):
        for place, total in zip(columns, row_sums, strict=True):
            builder.store(out.load(builder, row, place, _FLOATS), total)
    with cgutils.for_range(builder, matrix.height, intp=_INT) as loop:
        vectors = [matrix.load_floats(builder, loop.index, place) for place in columns]
        for row, row_sums in zip(rows, sums, strict=True):
            weight = weights.load(builder, row, loop.index, _FLOAT)
            weight = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), weight, ir.Constant(_WORD, 0))
            weight = _shuffle(builder, weight, weight, [0] * LANES)
            for vector, total in zip(vectors, row_sums, strict=True):
                builder.store(_multiply_add(context, builder, weight, vector, builder.load(total)), total)
    for row, row_sums in zip(rows, sums, strict=True):
        for place, total in zip(columns, row_sums, strict=True):
            out.store(builder, row, place, builder.load(total))
