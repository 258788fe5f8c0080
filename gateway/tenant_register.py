"""The tenants in force and their accounts; reloads the keys file as a whole or not at all.

Runs on the event loop; a reload reads on a thread. A visitor is one request's tenant as it was when the
request came: it ends under that identity whatever is reloaded meanwhile. Accounts are kept by name, so
counts survive a reload. Bound: one account for each name that the file has had, and for each ``--api-key``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.keys_file import KeysFileError, read_keys_file
from gateway.limits import Account, LimitError, Reservation
from gateway.metrics import Metrics
from gateway.shared_room import Holder, portion_of
from gateway.tenants import ANONYMOUS, DuplicateKeyError, KeyDigest, Keyring, Tenant, make_keyring

log = logging.getLogger("tidegate.gateway")


class TenantRegister:
    """Made by ``open``. ``is_open_to_all``: there are no keys, and everybody is one anonymous tenant."""

    def __init__(self, api_keys: Sequence[str], path: Path | None, keyring: Keyring) -> None:
        self._api_keys = api_keys
        self._path = path
        self._keyring = keyring
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self.is_open_to_all = path is None and not api_keys

    @classmethod
    def open(cls, api_keys: Sequence[str] = (), path: Path | None = None) -> TenantRegister:
        """Blocks for the file, if there is one; raises KeysFileError."""
        return cls(api_keys, path, _load(api_keys, path))

    def find(self, key: KeyDigest) -> Tenant | None:
        """Whose key this is; anybody's word is good where there are none."""
        return ANONYMOUS if self.is_open_to_all else self._keyring.find(key)

    def holder(self, tenant: Tenant) -> Holder:
        """As whom it holds room in the house: one among others, or the only one."""
        heaviest = self._keyring.heaviest_of_several
        if heaviest is None:
            return Holder(tenant.name)
        return Holder(tenant.name, portion_of(tenant.weight, heaviest))

    @property
    def is_shared(self) -> bool:
        """Whether there are several tenants."""
        return self._keyring.heaviest_of_several is not None

    def account(self, tenant: Tenant) -> Account:
        return self._accounts[tenant.name]

    async def reload(self) -> None:
        """Read the file again. If it cannot be used the old one stays in force, and the log says so."""
        if self._path is None:
            return
        try:
            self._keyring = await asyncio.to_thread(_load, self._api_keys, self._path)
        except KeysFileError as error:
            log.error("the keys file was not reloaded, the keys in force stay: %s", error)
        else:
            log.info("reloaded %s: %d keys are good", self._path, len(self._keyring))


def _load(api_keys: Sequence[str], path: Path | None) -> Keyring:
    listed = [] if path is None else read_keys_file(path)
    try:
        return make_keyring(api_keys, listed)
    except DuplicateKeyError as error:
        raise KeysFileError(f"The keys file {path} cannot be used: {error}.") from None


class Visitor:
    """Who sent one request, and what it takes. All it holds, it holds by scope."""

    __slots__ = ("_account", "_metrics", "_reservation", "holder", "tenant")

    def __init__(self, tenant: Tenant, holder: Holder, account: Account, metrics: Metrics) -> None:
        self.tenant = tenant
        self.holder = holder
        self._account = account
        self._metrics = metrics
        self._reservation: Reservation | None = None

    @property
    def account(self) -> Account:
        """Of the tenant."""
        return self._account

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a request and hold a place for its first answer. Raises LimitError."""
        self._pass(self._account.why_no_seats(self.tenant.limits, 1))
        self.count_request()
        with self._holding(1):
            yield

    def count_request(self) -> None:
        """Raises LimitError, and then counts nothing."""
        now_ms = _now_ms()
        self._pass(self._account.why_no_request(self.tenant.limits, now_ms))
        self._account.requests.add(1, now_ms)

    @contextmanager
    def answering(self, num_seqs: int, num_tokens: int) -> Iterator[None]:
        """Hold places for all answers of a request that entered, and reserve tokens. Raises LimitError."""
        limits, now_ms = self.tenant.limits, _now_ms()
        self._pass(self._account.why_no_seats(limits, num_seqs - 1, held=1))
        self._pass(self._account.why_no_tokens(limits, num_tokens, now_ms))
        with self._holding(num_seqs - 1):
            reservation = self._reservation = Reservation(self._account.tokens, num_tokens, now_ms)
            try:
                yield
            finally:
                reservation.settle()

    def use_prompt(self, count: int) -> None:
        """The engine gets a prompt of so many tokens."""
        self._use(count, "prompt")

    def use_generated(self, count: int) -> None:
        self._use(count, "generated")
        self._account.generated_total += count

    def note_first_token(self, after_s: float) -> None:
        """The request's first token came so long after it."""
        self._account.last_ttft_s = after_s

    def use_all(self) -> None:
        """What the engine generated is not known: what was reserved counts as used."""
        assert self._reservation is not None
        self._reservation.use_up()

    def rate_limit_headers(self) -> dict[str, str]:
        return self._account.headers(self.tenant.limits, _now_ms())

    def _use(self, count: int, kind: str) -> None:
        assert self._reservation is not None
        if not self._reservation.try_use(count):
            self._reservation.use(count, _now_ms())
        if self.tenant.is_listed:
            self._metrics.tenant_tokens.labels(self.tenant.name, kind).inc(count)

    @contextmanager
    def _holding(self, count: int) -> Iterator[None]:
        self._account.in_flight += count
        try:
            yield
        finally:
            self._account.in_flight -= count

    def _pass(self, refusal: LimitError | None) -> None:
        if refusal is not None:
            self._metrics.limited.labels(self.tenant.name, refusal.limit).inc()
            raise refusal


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
