"""The keys file: a strict parse, plain sentences, and no value of the file in any of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gateway.keys_file import KeysFileError, parse_keys_file, read_keys_file
from gateway.limits import Limits
from gateway.tenants import hash_key, salt_of

ONE, TWO = hash_key("one"), hash_key("two")
WHOLE = f"""
[tenants.acme]
keys = ["{ONE}", "{TWO.upper()}"]
max_concurrent = 8
requests_per_minute = 60
tokens_per_minute = 100_000
weight = 2
allow_priority = false
kv_quota = 0.25
cache_group = "family"

[tenants.guest]
keys = []
"""


def parse(text: str, *, is_json: bool = False) -> None:
    parse_keys_file(text, is_json=is_json)


def test_every_field() -> None:
    acme, guest = parse_keys_file(WHOLE, is_json=False)
    assert acme.digests == (bytes.fromhex(ONE), bytes.fromhex(TWO))
    assert (acme.tenant.name, acme.tenant.weight, acme.tenant.allows_priority) == ("acme", 2.0, False)
    assert (acme.tenant.kv_quota, guest.tenant.kv_quota) == (0.25, None)
    assert acme.tenant.limits == Limits(8, 60, 100_000)
    assert acme.tenant.cache_salt == salt_of("other", "family")
    assert (guest.tenant.limits, guest.tenant.weight, guest.tenant.allows_priority) == (Limits(), 1.0, True)
    assert guest.tenant.cache_salt == salt_of("guest", None)
    assert guest.tenant.is_listed


def test_json_means_the_same() -> None:
    tables = {
        "acme": {
            "keys": [ONE, TWO], "max_concurrent": 8, "requests_per_minute": 60, "tokens_per_minute": 100_000,
            "weight": 2, "allow_priority": False, "kv_quota": 0.25, "cache_group": "family",
        },
        "guest": {"keys": []},
    }  # fmt: skip
    assert parse_keys_file(json.dumps({"tenants": tables}), is_json=True) == parse_keys_file(
        WHOLE, is_json=False
    )


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ('keys = ["sk-unhashed-secret"]', "key 1 is not a SHA-256 in hex"),
        (f'keys = ["{ONE}", "{ONE.upper()}"]', "key 2 stands there twice"),
        (f'keys = ["{hash_key("")}"]', "nothing at all"),
        ('keys = "sk-unhashed-secret"', "expected 'array', got 'str' in 'keys'"),
        ("keys = [1]", "keys[0]"),
        ("weight = 1", "lacks the field 'keys'"),
        ("keys = []\nmax_concurrent = -1", "max_concurrent"),
        ("keys = []\nrequests_per_minute = 0", "requests_per_minute"),
        ("keys = []\ntokens_per_minute = 1.5", "tokens_per_minute"),
        ("keys = []\ntokens_per_minute = true", "tokens_per_minute"),
        ("keys = []\nweight = -1", "weight"),
        ("keys = []\nweight = nan", "weight"),
        ("keys = []\nweight = inf", "weight"),
        ("keys = []\nkv_quota = 1.5", "kv_quota"),
        ("keys = []\nkv_quota = -0.1", "kv_quota"),
        ("keys = []\nkv_quota = nan", "kv_quota"),
        ('keys = []\nkv_quota = "50%"', "kv_quota"),
        ("keys = []\nallow_priority = 1", "allow_priority"),
        ('keys = []\ncache_group = ""', "cache_group"),
        ('keys = []\ncache_group = "sk-unhashed-secret/"', "cache_group"),
        ("keys = []\nmax_concurent = 1", "'max_concurent'"),
        ("keys = []\nsk-unhashed-secret = 1", "of another name"),
    ],
)
def test_a_fault_names_the_tenant_and_the_field_and_no_value(table: str, part: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        parse(f"[tenants.acme]\n{table}\n")
    message = str(caught.value)
    assert "'acme'" in message and part in message
    assert "unhashed" not in message and ONE not in message.lower()


@pytest.mark.parametrize(
    "text",
    [
        "", "tenants = 1", "[tenants]", "[tenants]\nacme = 1", "[other]", "[tenants.a]\nkeys = []\n[extra]",
        '[tenants."a b"]\nkeys = []', '[tenants.""]\nkeys = []', "[tenants.api-key-1]\nkeys = []",
        "[tenants.a]\nkeys = []\n[tenants.a]\nkeys = []", "[tenants.a]\nkeys = ['sk-unhashed-secret",
        "sk-unhashed-secret", "[tenants.a]\nkeys = [] sk-unhashed-secret",
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_whole(text: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        parse(text)
    assert "unhashed" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "3", "{}", '{"tenants": {}}', '{"tenants": {"a": {"keys": [], "weight": NaN}}}',
        "[" * 100_000,
        '{"tenants": {"a": {"keys": []}, "a": {"keys": []}}}', '{"tenants": {"a": {"keys": [], "keys": []}}}',
        '{"tenants": {"a": {"keys": [sk-unhashed-secret]}}}',
    ],
)  # fmt: skip
def test_so_is_such_json(text: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        parse(text, is_json=True)
    assert "unhashed" not in str(caught.value)


def test_reading_says_which_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(KeysFileError, match=r"keys\.json: No such file"):
        read_keys_file(path)
    path.write_bytes(b"\xff")
    with pytest.raises(KeysFileError, match="not UTF-8"):
        read_keys_file(path)
    path.write_text(WHOLE)
    with pytest.raises(KeysFileError, match="not valid JSON \\(at line 2 column 2\\)"):
        read_keys_file(path)
    with pytest.raises(KeysFileError, match="Is a directory"):
        read_keys_file(tmp_path)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_a_file_that_everybody_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(WHOLE)
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert len(read_keys_file(path)) == 2
    assert ("chmod 600" in caplog.text) == warns
