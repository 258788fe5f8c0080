"""Sizes as people write them."""

from __future__ import annotations

import pytest

from engine.config import ConfigError, MemorySize, parse_memory_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1048576", 2**20),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("2GiB", 2**31),
        ("1.5GB", 1_500_000_000),
        ("1g", 2**30),
    ],
)
def test_bytes(text: str, num_bytes: int) -> None:
    assert parse_memory_size(text).resolve(10**15) == num_bytes


def test_a_share_of_the_tiers_memory() -> None:
    assert parse_memory_size("25%").resolve(1000) == 250
    assert parse_memory_size("100%") == MemorySize(fraction=1.0)


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1GiB", "0", "0%", "101%", "5 parsecs", "1e9", "nan", "1,5GiB", "9" * 400]
)
def test_nonsense_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\.$"):
        parse_memory_size(text)
