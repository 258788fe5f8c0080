"""Tickets: what a web page opens a WebSocket with, since browsers send no header of its choosing there.

Pure counting; time is passed in. A ticket stands in a URL, which proxies log, so it is good once, and for a
short while only. It is as good as the key it was got with: no longer, if that is revoked meanwhile. Bound:
``max_tickets`` that are out, of which no tenant can have all.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from gateway.errors import ApiError, ErrorKind
from gateway.shared_room import Holder, SharedRoom
from gateway.tenants import KeyDigest, digest_of

_PREFIX = "tgt-"
_RANDOM_BYTES = 32


class TicketAnswer(msgspec.Struct):
    """Opens one WebSocket until ``expires_at``, in seconds since 1970."""

    ticket: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class _Issued:
    key: KeyDigest
    holder: Holder
    expires_at_s: float


class TicketOffice:
    """Tickets by digest, the oldest first. A ticket itself is kept nowhere."""

    def __init__(self, ttl_s: float, max_tickets: int = 65_536) -> None:
        self.ttl_s = ttl_s
        self._room = SharedRoom(max_tickets)
        self._issued: OrderedDict[KeyDigest, _Issued] = OrderedDict()

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, key: KeyDigest, holder: Holder, now_s: float) -> str:
        """A ticket for the key's owner. Raises ApiError (429)."""
        self._drop_expired(now_s)
        if self._room.lacking(holder, 1):
            raise ApiError(ErrorKind.BUSY, "Too many tickets are out.", retry_after_s=self.ttl_s)
        ticket = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        self._room.take(holder, 1)
        self._issued[digest_of(ticket.encode())] = _Issued(key, holder, now_s + self.ttl_s)
        return ticket

    def redeem(self, ticket: str, now_s: float) -> KeyDigest | None:
        """The key that the ticket was got with; None if it is not good any more, or never was."""
        self._drop_expired(now_s)
        digest = digest_of(ticket.encode(errors="surrogateescape"))
        issued = self._issued.pop(digest, None)
        if issued is None:
            return None
        self._room.give_back(issued.holder, 1)
        return issued.key

    def _drop_expired(self, now_s: float) -> None:
        while self._issued:
            digest, issued = next(iter(self._issued.items()))
            if issued.expires_at_s > now_s:
                return
            del self._issued[digest]
            self._room.give_back(issued.holder, 1)
