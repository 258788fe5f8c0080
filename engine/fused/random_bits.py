"""The counter-based random numbers of ``engine.execution.random_numbers``, on the device, one a token.

A draw has a key, to which its seed and position are mixed; a token's bits are its own place in the SplitMix64
sequence (Steele, Lea and Flood, OOPSLA 2014) that starts at the key. So they depend neither on the row's
place in the batch, nor on tiles, nor on how often the step is repeated.
"""

from __future__ import annotations

import triton.language as tl

from engine.kernels.jit import jit

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_UNIT = tl.constexpr(2.0**-32)
_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)  # the largest float32 that is


@jit()
def mix(x: tl.tensor) -> tl.tensor:
    """The finalizer of SplitMix64, of uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@jit()
def draw_key(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """64 bits for a draw, of its seed's 64 bits and the position of the token to be drawn."""
    return mix(mix(seed.to(tl.uint64) + _GOLDEN) + (position.to(tl.uint64) + 1) * _GOLDEN)


@jit()
def exponential(key: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """Float32 numbers, exponentially distributed with mean 1, for ``tokens``. None is 0.

    The token with the least number / weight is a draw by weight; so what decides is small numbers. The number
    is -log(1 - u) with a u of 32 bits, which next to 0 would lose them in the subtraction: there a series
    replaces the logarithm, right to a rounding below 1/16.
    """
    bits = (mix(key + (tokens.to(tl.uint64) + 1) * _GOLDEN) >> 32).to(tl.uint32)
    u = tl.minimum((bits.to(tl.float32) + 0.5) * _UNIT, _BELOW_ONE)
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    return tl.where(u < 1 / 16, series, -tl.log(1.0 - u))
