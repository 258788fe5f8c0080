"""Reads a keys file: TOML, or JSON if its name ends so, into tenants. docs/tenants.md describes it.

Runs before the event loop, and on a thread for a reload; blocks. The parse is strict and all or nothing:
what is misspelt, of the wrong type or out of range is a KeysFileError that names the tenant and the field
and never shows a value, because a value may be a key that somebody forgot to hash.
"""

from __future__ import annotations

import json
import logging
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.config import ConfigError
from gateway.limits import Limits
from gateway.tenants import API_KEY_PREFIX, EMPTY_DIGEST, ListedTenant, Tenant, salt_of

log = logging.getLogger("tidegate.gateway")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLAIN_FIELD = re.compile(r"[a-z_]{1,32}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_PLACE = re.compile(r"line \d+,? column \d+|end of document")
Count = Annotated[int, Meta(ge=1, le=10**12)]


class KeysFileError(ConfigError):
    """The file cannot be used. The message is one sentence without any value of the file."""


class TenantEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One table of the file. ``keys`` are SHA-256 digests in hex; none: the tenant is shut out for now."""

    keys: list[str]
    max_concurrent: Count | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    allow_priority: bool = True
    cache_group: str | None = None
    kv_quota: Annotated[float, Meta(ge=0, le=1)] | None = None


def read_keys_file(path: Path) -> list[ListedTenant]:
    """All tenants of a file. Raises KeysFileError; warns of a file that others can read."""
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except OSError as error:
        raise KeysFileError(f"Cannot read the keys file {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise KeysFileError(f"The keys file {path} is not UTF-8 text.") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("everybody on this machine can read or write the keys file %s; chmod 600 it", path)
    try:
        return parse_keys_file(text, is_json=path.suffix == ".json")
    except KeysFileError as error:
        raise KeysFileError(f"The keys file {path} cannot be used: {error}.") from None


def parse_keys_file(text: str, *, is_json: bool) -> list[ListedTenant]:
    """Raises KeysFileError with half a sentence: what is wrong, and where."""
    document = _load(text, is_json=is_json)
    tables = document.get("tenants") if isinstance(document, dict) else None
    if not isinstance(tables, dict) or not tables:
        raise KeysFileError("it has no table 'tenants' with at least one tenant")
    _refuse_unknown(document, {"tenants"}, "the file")
    return [_tenant(name, table) for name, table in tables.items()]


def _load(text: str, *, is_json: bool) -> Any:
    parse: Callable[[str], Any] = _parse_json if is_json else tomllib.loads
    try:
        return parse(text)
    except KeysFileError:
        raise
    except (ValueError, RecursionError) as error:
        place = _PLACE.search(str(error))  # the rest of the message may show a piece of the file
        where = f" (at {place.group()})" if place else ""
        raise KeysFileError(f"it is not valid {'JSON' if is_json else 'TOML'}{where}") from None


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_refuse_repeated)


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise KeysFileError("a name in it stands twice in one object")
    return found


def _tenant(name: str, table: Any) -> ListedTenant:
    if not _NAME.fullmatch(name) or name.startswith(API_KEY_PREFIX):
        raise KeysFileError(
            "a tenant's name must be 1 to 64 letters, digits, '.', '_' or '-', and not begin with"
            f" '{API_KEY_PREFIX}'"
        )
    who = f"tenant '{name}'"
    if isinstance(table, dict):
        _refuse_unknown(table, set(TenantEntry.__struct_fields__), who)
    try:
        entry = msgspec.convert(table, TenantEntry)
    except msgspec.ValidationError as error:
        raise KeysFileError(f"{who}: {_plain(str(error))}") from None
    if entry.cache_group is not None and not _NAME.fullmatch(entry.cache_group):
        raise KeysFileError(f"{who}: 'cache_group' must be made up as a tenant's name is")
    tenant = Tenant(
        name=name,
        cache_salt=salt_of(name, entry.cache_group),
        weight=entry.weight,
        limits=Limits(entry.max_concurrent, entry.requests_per_minute, entry.tokens_per_minute),
        allows_priority=entry.allow_priority,
        is_listed=True,
        kv_quota=entry.kv_quota,
    )
    return ListedTenant(tenant, tuple(_digests(entry.keys, who)))


def _digests(keys: list[str], who: str) -> Iterator[bytes]:
    seen = set[bytes]()
    for number, key in enumerate(keys, start=1):
        if not _DIGEST.fullmatch(key):
            raise KeysFileError(
                f"{who}: key {number} is not a SHA-256 in hex; 'tidegate keys hash' makes one of a key"
            )
        digest = bytes.fromhex(key)
        if digest == EMPTY_DIGEST:
            raise KeysFileError(f"{who}: key {number} is the hash of nothing at all")
        if digest in seen:
            raise KeysFileError(f"{who}: key {number} stands there twice")
        seen.add(digest)
        yield digest


def _refuse_unknown(table: dict[str, Any], known: set[str], who: str) -> None:
    for name in table:
        if name not in known:
            shown = f"'{name}'" if _PLAIN_FIELD.fullmatch(name) else "of another name"
            raise KeysFileError(f"{who} has a field {shown}, not one of {_listing(known)}")


def _listing(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _plain(message: str) -> str:
    """msgspec's sentence, which shows types and bounds but no values, with the field as users write it."""
    plain = message.replace(" - at `$.", " in `").replace("Object missing required", "it lacks the")
    return plain.replace("Expected", "expected").replace("`", "'")
