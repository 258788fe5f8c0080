"""Sizes as people write them."""

from __future__ import annotations

import pytest

from engine.config import (
    ConfigError,
    DiskTier,
    MemorySize,
    parse_disk_tier,
    parse_memory_size,
    parse_optional_size,
    parse_share,
)


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


@pytest.mark.parametrize(("text", "share"), [("0%", 0.0), ("50%", 0.5), ("2.5 %", 0.025), ("100%", 1.0)])
def test_a_share(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "50", "0.5", "-1%", "101%", "50%%", "nan%", "half", "9" * 400 + "%"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a share"):
        parse_share(text)


@pytest.mark.parametrize(
    "text", ["0", "-1", "101%", "1e3", "20GiB", "20", "50%", "off", "OFF", "5g", "1.5TB"]
)
def test_a_size_is_not_taken_for_a_directory(text: str) -> None:
    with pytest.raises(ConfigError, match="is a size where a directory should be"):
        parse_disk_tier(text)
    with pytest.raises(ConfigError, match="is a size where a directory should be"):
        parse_disk_tier(f"{text}:1GiB")
    assert parse_disk_tier(f"./{text}") == DiskTier(f"./{text}")


@pytest.mark.parametrize("text", ["kv", "/var/cache/kv", "5gigs", "kv2", "2kv", "cache.d", "offline"])
def test_directories(text: str) -> None:
    assert parse_disk_tier(text) == DiskTier(text)
    assert parse_disk_tier(f"{text}:2GiB") == DiskTier(text, MemorySize(num_bytes=2 * 2**30))


@pytest.mark.parametrize("text", [":1GiB", "", "kv:", "kv:0", "kv:101%", "kv:-1", "kv:1e3", "a\0b"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_disk_tier(text)


def test_a_tier_can_be_turned_off() -> None:
    assert parse_optional_size("off") == parse_optional_size("0") == MemorySize(num_bytes=0)
    assert parse_optional_size("2GiB") == parse_memory_size("2GiB")
    with pytest.raises(ConfigError):
        parse_memory_size("0")
