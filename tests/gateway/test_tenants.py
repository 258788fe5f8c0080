"""Keys, digests and salts: who is who, and who shares what."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants import (
    ANONYMOUS,
    DuplicateKeyError,
    ListedTenant,
    Tenant,
    digest_of,
    hash_key,
    make_keyring,
    new_key,
    salt_of,
)


def listed(name: str, *keys: str, cache_group: str | None = None) -> ListedTenant:
    return ListedTenant(
        Tenant(name, salt_of(name, cache_group), is_listed=True),
        tuple(bytes.fromhex(hash_key(key)) for key in keys),
    )


def test_all_keys_of_a_tenant_are_that_tenant() -> None:
    ring = make_keyring((), [listed("acme", "old", "new"), listed("other", "third")])
    assert ring.find(digest_of(b"old")) is ring.find(digest_of(b"new")) is not None
    assert ring.find(digest_of(b"third")) is not ring.find(digest_of(b"old"))
    assert (
        ring.find(digest_of(b"unknown")) is ring.find(digest_of(b"")) is ring.find(digest_of(b"\xff")) is None
    )


@given(st.text(min_size=1))
def test_a_hash_is_no_key(key: str) -> None:
    key = key.encode("utf-8", errors="replace").decode()
    ring = make_keyring((key,), [])
    assert ring.find(digest_of(key.encode())) is not None
    assert ring.find(digest_of(hash_key(key).encode())) is None
    assert hash_key(key) == hashlib.sha256(key.encode()).hexdigest()


def test_api_keys_are_tenants_of_their_own_with_names_that_tell_nothing() -> None:
    ring = make_keyring(("first-secret", "second-secret", "first-secret"), [])
    first, second = ring.find(digest_of(b"first-secret")), ring.find(digest_of(b"second-secret"))
    assert first is not None and second is not None
    assert (first.name, second.name) == ("api-key-1", "api-key-2")
    assert first.cache_salt == hashlib.blake2s(b"first-secret").digest()
    assert not first.is_listed
    assert len({first.cache_salt, second.cache_salt, ANONYMOUS.cache_salt}) == 3


def test_a_key_need_not_be_utf_8() -> None:
    ring = make_keyring(("k\udcff", "k\udcfe"), [])
    one, other = ring.find(digest_of(b"k\xff")), ring.find(digest_of(b"k\xfe"))
    assert one is not None and other is not None
    assert one.cache_salt != other.cache_salt


def test_the_salt_is_the_tenants_or_the_groups_and_never_a_keys() -> None:
    salts = [salt_of(name, group) for name in ("a", "b") for group in (None, "a", "g")]
    own_a, group_a, in_g, own_b, _, also_in_g = salts
    assert in_g == also_in_g
    assert len({own_a, own_b, group_a, in_g}) == 4  # group a is not tenant a
    assert listed("a", "one").tenant == listed("a", "another").tenant


@pytest.mark.parametrize(
    ("api_keys", "tenants"),
    [((), [listed("a", "same"), listed("b", "x", "same")]), (("same",), [listed("a", "same")])],
)
def test_a_key_belongs_to_one(api_keys: tuple[str, ...], tenants: list[ListedTenant]) -> None:
    with pytest.raises(DuplicateKeyError, match="have the same key") as caught:
        make_keyring(api_keys, tenants)
    assert "same-" not in str(caught.value) and hash_key("same") not in str(caught.value)


def test_nothing_shows_a_key() -> None:
    ring = make_keyring(("secret-one",), [listed("acme", "secret-two")])
    tenant = ring.find(digest_of(b"secret-one"))
    for text in (repr(ring), repr(tenant), repr(listed("acme", "secret-two")), str(vars(ring))):
        assert "secret" not in text
        assert hash_key("secret-two") not in text


def test_new_keys_are_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("tg-") and len(key) == 46 for key in keys)


def test_an_owner_is_the_same_after_a_restart_whatever_the_order_of_the_keys() -> None:
    for name, other in (("one", "two"), ("two", "one")):
        first, second = (
            make_keyring((name, other), []).find(digest_of(key.encode())) for key in (name, other)
        )
        assert first is not None and second is not None
        assert first.name == "api-key-1"
        again = make_keyring((other, name), []).find(digest_of(name.encode()))
        assert again is not None
        assert first.owner == again.owner != second.owner
        assert name not in first.owner
    listed_one = listed("acme", "key", cache_group="family").tenant
    assert (listed_one.owner, ANONYMOUS.owner) == ("acme", "")
    assert make_keyring(("key",), []).find(digest_of(b"key")).owner not in ("acme", "")  # type: ignore[union-attr]
