"""LLVM instructions for products with quantized tiles: what the packed kernels are made of.

A product is of a tile and a block of rows, all of whose sums are in registers. Tile and rows are read group
by group of inputs, so a row's sums have one order, whatever its neighbours are. There are two kinds:

- *Of bytes*, which need a CPU with instructions for them (``has_byte_products``): one that sums four products
  at once, or two into 16 bits. Rows come as signed bytes with a scale a group; sums within a group are exact,
  so both give the same.
- *Of float32*, for any CPU. Weights are not shifted into place: masked where it stands, the one at place
  ``i`` of a word reads as ``q * 2**(bits * i)``, and its input was divided by that power
  (``layout.scales_of_inputs``). Both are exact, so is the product, and a shift is saved for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

from engine.compiled.jit import has_feature, has_fma, intrinsic
from engine.compiled.jit import has_wide_registers as lanes_are_wide
from engine.packed.layout import GROUP, LANES, PANELS, TILE, input_of

_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS, _FLOATS = ir.VectorType(_WORD, LANES), ir.VectorType(_FLOAT, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_PAIRS = ir.VectorType(ir.IntType(16), 2 * LANES)
_WORD_BYTES, _SCALE_BYTES = 4 * LANES, 2 * LANES  # of a panel
_LOW_NIBBLES = 0x0F0F0F0F
_HALF_TO_FLOAT = 2.0**112  # what is between the exponents' biases of float16 and float32


def has_byte_products() -> bool:
    """Whether the CPU that kernels are compiled for multiplies and sums pairs of bytes.

    AVX-512 without VNNI does, but not in the vectors that all else is in there.
    """
    context = cpu_target.target_context
    has_pairs = has_feature(context, "avx2") and not lanes_are_wide(context)
    return has_pairs or has_feature(context, "avx512vnni")


def has_wide_registers() -> bool:
    """Whether that CPU has registers for all lanes of a panel."""
    return lanes_are_wide(cpu_target.target_context)


class _Emitter:
    """Instructions over vectors of ``LANES``."""

    def __init__(self, context: Any, builder: Any) -> None:
        self._builder = builder
        self._widens_halves = has_feature(context, "f16c")
        self._fma = None
        if has_fma(context):
            signature = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
            self._fma = cgutils.get_or_insert_function(builder.module, signature, f"llvm.fma.v{LANES}f32")

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded once if the CPU has an instruction for it."""
        if self._fma is not None:
            return self._builder.call(self._fma, [a, b, c])
        return self._builder.fadd(self._builder.fmul(a, b), c)

    def add_byte_products(self, unsigned: Any, signed: Any, total: Any) -> Any:
        """``total`` plus, in each lane, the products of four unsigned bytes with four signed ones.

        Newer versions of LLVM type the bytes as such, and take this older signature too.
        """
        signature = ir.FunctionType(_WORDS, [_WORDS] * 3)
        name = "llvm.x86.avx512.vpdpbusd.512"
        function = cgutils.get_or_insert_function(self._builder.module, signature, name)
        return self._builder.call(function, [total, unsigned, signed])

    def pair_products(self, unsigned: Any, signed: Any) -> Any:
        """The sum of two products of neighbouring bytes, for each two; it must fit in 16 bits."""
        return self._by_halves("llvm.x86.avx2.pmadd.ub.sw", unsigned, signed, 8, 16)

    def sums_of_pairs(self, pairs: Any, factor: int) -> Any:
        """``factor`` times the sum of two neighbouring numbers of 16 bits, in each lane."""
        factors = ir.Constant(_PAIRS, [factor] * 2 * LANES)
        return self._by_halves("llvm.x86.avx2.pmadd.wd", pairs, factors, 16, 32)

    def _by_halves(self, name: str, a: Any, b: Any, bits: int, result_bits: int) -> Any:
        """An instruction for 256 bits, from vectors of numbers of ``bits`` to one of ``result_bits``."""
        builder, num_bits = self._builder, 32 * LANES
        whole, half = (ir.VectorType(ir.IntType(bits), num_bits // bits // parts) for parts in (1, 2))
        result = ir.VectorType(ir.IntType(result_bits), half.count * bits // result_bits)
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [half, half]), name)
        a, b = (builder.bitcast(value, whole) for value in (a, b))
        parts = []
        for start in (0, half.count):
            places = _places(range(start, start + half.count))
            parts.append(builder.call(function, [builder.shuffle_vector(v, v, places) for v in (a, b)]))
        return builder.shuffle_vector(*parts, _places(range(2 * result.count)))

    def address(self, base: Any, *steps: tuple[Any, int]) -> Any:
        """``base`` plus each index times its stride, in bytes."""
        for index, stride in steps:
            constant = ir.Constant(_LONG, index * stride if isinstance(index, int) else stride)
            step = constant if isinstance(index, int) else self._builder.mul(index, constant)
            base = self._builder.add(base, step)
        return base

    def load(self, kind: Any, address: Any, alignment: int) -> Any:
        value = self._builder.load(self._builder.inttoptr(address, kind.as_pointer()))
        value.align = alignment
        return value

    def store(self, value: Any, address: Any) -> None:
        where = self._builder.inttoptr(address, value.type.as_pointer())
        self._builder.store(value, where).align = 4

    def broadcast(self, address: Any) -> Any:
        """The float32 at ``address`` in every lane."""
        value = self.load(_FLOAT, address, 4)
        nothing = ir.Constant(_FLOATS, ir.Undefined)
        first = self._builder.insert_element(nothing, value, ir.Constant(_WORD, 0))
        return self._builder.shuffle_vector(first, nothing, _places([0] * LANES))

    def widened(self, halves: Any) -> Any:
        """float16 as float32, for numbers that are finite; some CPUs have no instruction for it."""
        builder = self._builder
        if self._widens_halves:
            return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), LANES)), _FLOATS)
        bits = builder.zext(halves, _WORDS)
        magnitude = builder.shl(builder.and_(bits, constants(0x7FFF)), constants(13))
        sign = builder.shl(builder.and_(bits, constants(0x8000)), constants(16))
        scale = ir.Constant(_FLOATS, [_HALF_TO_FLOAT] * LANES)
        scaled = builder.fmul(builder.bitcast(magnitude, _FLOATS), scale)
        return builder.bitcast(builder.or_(builder.bitcast(scaled, _WORDS), sign), _FLOATS)


def constants(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * LANES)


def _places(places: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(_WORD, len(places)), list(places))


class _Product(ABC):
    """Emits one product. Sums of a group are in ``partial``, those over groups in ``totals``."""

    partial_type: Any  # of what a group's sums are
    input_bytes: int  # of an input of a row

    def __init__(self, context: Any, builder: Any, bits: int, num_rows: int) -> None:
        self._builder = builder
        self._emit = _Emitter(context, builder)
        self._bits = bits
        self._cells = [(row, panel) for row in range(num_rows) for panel in range(PANELS)]
        self._totals = {cell: cgutils.alloca_once(builder, _FLOATS) for cell in self._cells}
        self._partial = {cell: cgutils.alloca_once(builder, self.partial_type) for cell in self._cells}
        self._num_rows = num_rows

    def emit(
        self, tile: Any, groups: Any, x: Any, x_stride: Any, stats: Any, stats_stride: Any, out: Any
    ) -> None:
        rows = [self._emit.address(x, (x_stride, row)) for row in range(self._num_rows)]
        stats_of_rows = [self._emit.address(stats, (stats_stride, row)) for row in range(self._num_rows)]
        words_bytes = PANELS * self._bits * _WORD_BYTES
        self._clear(self._totals, _FLOATS)
        with cgutils.for_range(self._builder, groups, intp=_LONG) as loop:
            group = loop.index
            base = self._emit.address(tile, (group, words_bytes + 2 * PANELS * _SCALE_BYTES))
            inputs = [self._emit.address(row, (group, GROUP * self.input_bytes)) for row in rows]
            self._clear(self._partial, self.partial_type)
            self._add_group(base, inputs)
            at = [self._emit.address(row, (group, 8)) for row in stats_of_rows]
            self._add_to_totals(self._emit.address(base, (1, words_bytes)), at)
        for row, panel in self._cells:
            at = self._emit.address(out, (row, 4 * TILE), (panel, 4 * LANES))
            self._emit.store(self._builder.load(self._totals[row, panel]), at)

    def _clear(self, sums: dict[tuple[int, int], Any], kind: Any) -> None:
        for place in sums.values():
            self._builder.store(ir.Constant(kind, None), place)

    def _add_group(self, base: Any, inputs: Sequence[Any]) -> None:
        with cgutils.for_range(self._builder, ir.Constant(_LONG, self._bits), intp=_LONG) as loop:
            at = self._emit.address(base, (loop.index, _WORD_BYTES))
            step = input_of(self._bits, 1, 0) * self.input_bytes
            words = [
                self._emit.load(
                    _WORDS, self._emit.address(at, (panel, self._bits * _WORD_BYTES)), _WORD_BYTES
                )
                for panel in range(PANELS)
            ]
            self._add_words(words, [self._emit.address(row, (loop.index, step)) for row in inputs])

    def _add_to_totals(self, scales: Any, stats: Sequence[Any]) -> None:
        """``stats``: addresses of a group's scale and sum of inputs, by row."""
        for panel in range(PANELS):
            at = self._emit.address(scales, (panel, _SCALE_BYTES))
            scale = self._emit.widened(self._emit.load(_HALVES, at, _SCALE_BYTES))
            at = self._emit.address(at, (PANELS, _SCALE_BYTES))
            minimum = self._emit.widened(self._emit.load(_HALVES, at, _SCALE_BYTES))
            for row, stat in enumerate(stats):
                total = self._builder.load(self._totals[row, panel])
                total = self._add_scaled(self._builder.load(self._partial[row, panel]), scale, stat, total)
                of_inputs = self._emit.broadcast(self._emit.address(stat, (1, 4)))
                self._builder.store(
                    self._emit.multiply_add(minimum, of_inputs, total), self._totals[row, panel]
                )

    @abstractmethod
    def _add_words(self, words: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Add the products of one word of every output, by panel, with inputs at addresses by row."""

    @abstractmethod
    def _add_scaled(self, partial: Any, scale: Any, stat: Any, total: Any) -> Any:
        """``total`` and a group's sums, by the scales of its weights and of its inputs."""


class _FloatProduct(_Product):
    partial_type = _FLOATS
    input_bytes = 4

    def _add_words(self, words: Sequence[Any], inputs: Sequence[Any]) -> None:
        for place in range(GROUP // self._bits):
            weights = [self._weights(part, place) for part in words]
            for row, start in enumerate(inputs):
                at = self._emit.address(start, (input_of(self._bits, 0, place), self.input_bytes))
                value = self._emit.broadcast(at)
                for panel, weight in enumerate(weights):
                    cell = self._partial[row, panel]
                    added = self._emit.multiply_add(value, weight, self._builder.load(cell))
                    self._builder.store(added, cell)

    def _weights(self, words: Any, place: int) -> Any:
        """The weights at ``place``, times ``2**(bits * place)``; but the last, masked, would be negative."""
        shift = self._bits * place
        if place == GROUP // self._bits - 1:
            values = self._builder.lshr(words, constants(shift))
        else:
            values = self._builder.and_(words, constants((2**self._bits - 1) << shift))
        return self._builder.sitofp(values, _FLOATS)

    def _add_scaled(self, partial: Any, scale: Any, stat: Any, total: Any) -> Any:
        return self._emit.multiply_add(scale, partial, total)


class _ByteProduct(_Product):
    """Of four bytes at a time."""

    partial_type = _WORDS
    input_bytes = 1

    def _add_words(self, words: Sequence[Any], inputs: Sequence[Any]) -> None:
        for half in range(8 // self._bits):  # weights of four bits are half a group apart in a byte
            weights = words if self._bits == 8 else [self._nibbles(part, half) for part in words]
            for row, start in enumerate(inputs):
                four = self._four(start, half)
                for panel, weight in enumerate(weights):
                    cell = self._partial[row, panel]
                    added = self._emit.add_byte_products(weight, four, self._builder.load(cell))
                    self._builder.store(added, cell)

    def _four(self, start: Any, half: int) -> Any:
        """Four inputs, in every lane."""
        at = self._emit.address(start, (half, GROUP // 2))
        return self._builder.bitcast(self._emit.broadcast(at), _WORDS)

    def _nibbles(self, words: Any, half: int) -> Any:
        shifted = self._builder.lshr(words, constants(4)) if half else words
        return self._builder.and_(shifted, constants(_LOW_NIBBLES))

    def _add_scaled(self, partial: Any, scale: Any, stat: Any, total: Any) -> Any:
        sums = self._builder.fmul(self._builder.sitofp(partial, _FLOATS), scale)
        return self._emit.multiply_add(sums, self._emit.broadcast(stat), total)


class _PairProduct(_ByteProduct):
    """Of two bytes at a time, always by four bits of a weight: with eight the sum of two may not fit.

    The eight sums that a group of four-bit weights has for one place of a vector do fit, together, in 16
    bits: 8 * 2 * 15 * 127 is 30,480. Of eight-bit weights both halves are summed in 32 bits, the upper
    times 16.
    """

    def __init__(self, context: Any, builder: Any, bits: int, num_rows: int) -> None:
        self.partial_type = _PAIRS if bits == 4 else _WORDS
        super().__init__(context, builder, bits, num_rows)

    def _add_words(self, words: Sequence[Any], inputs: Sequence[Any]) -> None:
        for half in range(2):
            weights = [self._nibbles(part, half) for part in words]
            for row, start in enumerate(inputs):
                four = self._four(start, half if self._bits == 4 else 0)
                for panel, weight in enumerate(weights):
                    added = self._emit.pair_products(weight, four)
                    if self._bits == 8:
                        added = self._emit.sums_of_pairs(added, 16**half)
                    cell = self._partial[row, panel]
                    self._builder.store(self._builder.add(self._builder.load(cell), added), cell)

    def _add_scaled(self, partial: Any, scale: Any, stat: Any, total: Any) -> Any:
        sums = self._emit.sums_of_pairs(partial, 1) if self._bits == 4 else partial
        return super()._add_scaled(sums, scale, stat, total)


def _kind_of(context: Any, rows: Any) -> type[_Product]:
    if rows.dtype is not types.int8:
        return _FloatProduct
    return _ByteProduct if has_feature(context, "avx512vnni") else _PairProduct


def product_of(num_rows: int) -> Any:
    """A function of compiled code, ``(rows, bits, tile, groups, x, x_step, stats, stats_step, out)``.

    Multiplies one tile, of weights of 4 or 8 bits, by ``num_rows`` rows of ``rows``, an array of int8 or
    float32 that says by its type which product it takes. All others but ``groups`` are addresses, and steps
    between rows, in bytes: of a tile; of rows ``[rows, in]``; of their groups' float32 ``[rows, groups, 2]``,
    an input's scale (of bytes only) and the sum of all inputs, scaled; of the result, ``[rows, TILE]``.
    """

    @intrinsic
    def product(
        _: Any, rows: Any, bits: Any, tile: Any, groups: Any, x: Any, xs: Any, stats: Any, ss: Any, out: Any
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = _kind_of(context, rows)
            is_4 = builder.icmp_unsigned("==", values[1], ir.Constant(_LONG, 4))
            with builder.if_else(is_4) as branches:
                for width, branch in zip((4, 8), branches, strict=True):
                    with branch:
                        kind(context, builder, width, num_rows).emit(*values[2:])
            return context.get_dummy_value()

        return types.void(rows, *[types.int64] * 8), emit

    return product
