"""The least time in which torch's own products could do what a load asks. Pure.

A prompt costs its rows of products in bf16 (float32 where the CPU has no products in bf16), at the rate that
a whole chunk has. A decode step costs the products of its rows in whichever format is fastest for so many,
and the bytes of the KV that it reads. Nothing else costs anything: no attention arithmetic, no norm, no
sampling, no server.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from benchmarks.cpu_engine.asked import Load


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """As they were measured. ``products_s``: of a decode step's products, by weight format."""

    prefill_tokens_s: float
    products_s: dict[str, float]
    copied_bytes_s: float  # read and written ones together
    kv_token_bytes: int  # of all layers
    prefill_format: str = "bf16"  # of the weights that a prompt's rows go through

    @property
    def fastest_products_s(self) -> float:
        return min(self.products_s.values())

    def kv_s(self, num_tokens: float) -> float:
        """To read the KV of so many tokens."""
        return num_tokens * self.kv_token_bytes / self.copied_bytes_s


class Probe(msgspec.Struct, frozen=True):
    """Rates of one moment, which without drift are the same at any other."""

    matmul_flop_s: float
    read_bytes_s: float

    def drift_to(self, later: Probe) -> float:
        """By how much either rate changed, up or down: 1 is not at all."""
        ratios = (later.matmul_flop_s / self.matmul_flop_s, later.read_bytes_s / self.read_bytes_s)
        return max(max(ratio, 1 / ratio) for ratio in ratios)


def prefill_s(constants: Constants, num_tokens: int) -> float:
    return num_tokens / constants.prefill_tokens_s


def output_tokens_s(constants: Constants, load: Load) -> float:
    """Of a load whose users all begin together; the first token of an answer comes of its prefill."""
    steps_s = sum(
        constants.fastest_products_s + constants.kv_s(load.users * (load.input_len + number))
        for number in range(1, load.output_len)
    )
    seconds = prefill_s(constants, load.users * load.input_len) + steps_s
    return load.users * load.output_len / seconds


def fastest_format(constants: Mapping[str, float]) -> str:
    return min(constants, key=constants.__getitem__)
