"""From a validated request to its generation: the engine's requests, and what its tokens are booked on.

Runs on the event loop. All endpoints that generate pass through here, so that none forgets whose a request
is, how urgent it is, or of which session; and none tells the engine's failures in its own way.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.messages import AddRequest, Retention
from gateway.errors import ApiError, from_failure
from gateway.generation import Generation
from gateway.mailbox import FailureKind, StreamFailure
from gateway.metrics import CANCELLED, RequestRecord
from gateway.openai.cache_hints import CacheHints
from gateway.openai.service import Service
from gateway.openai.validated import GenerationRequest
from gateway.state import Gateway
from gateway.tenant_register import Visitor
from gateway.tenants import Tenant
from gateway.token_stream import TokenStream

log = logging.getLogger("tidegate.gateway")


def service_for(tenant: Tenant, request: GenerationRequest) -> Service:
    """How urgent a request is, as far as its tenant may say so."""
    return request.service if tenant.allows_priority else request.service.without_priority()


def session_name(tenant: Tenant, kind: str, name: str) -> str:
    """What the engine knows a session by, for as long as it is stored.

    Whatever ``name`` is, tenants and kinds never meet in one.
    """
    parts = "\0".join((tenant.owner, kind, name)).encode(errors="surrogatepass")
    return hashlib.blake2s(parts, digest_size=16).hexdigest()


def session_of_key(tenant: Tenant, request: GenerationRequest) -> str:
    """Of the requests with one ``prompt_cache_key``; none if there is no key."""
    return "" if request.cache.key is None else session_name(tenant, "key", request.cache.key)


def engine_requests(
    request: GenerationRequest, answer_id: str, tenant: Tenant, session: str, kv_quota: float
) -> list[AddRequest]:
    """One for each prompt; ``answer_id`` is that of the first."""
    priority = service_for(tenant, request).engine_priority
    return [
        AddRequest(
            request_id=f"{answer_id}.{number}" if number else answer_id,
            prompt_token_ids=prompt.token_ids,
            sampling=prompt.sampling,
            cache_salt=tenant.cache_salt,
            tenant=tenant.name,
            weight=tenant.weight,
            priority=priority,
            session=session,
            retention=_retention(request.cache),
            kv_quota=kv_quota,
        )
        for number, prompt in enumerate(request.prompts)
    ]


def _retention(hints: CacheHints) -> Retention | None:
    if not hints.keep_s and hints.may_reach_disk:
        return None
    return Retention(keep_s=hints.keep_s, lowest="disk" if hints.may_reach_disk else "host")


class Booking:
    """Books what one request takes: with its tenant, and in the metrics."""

    __slots__ = ("_num_seqs", "_num_told", "_record", "_sampling", "_visitor")

    def __init__(self, request: GenerationRequest, visitor: Visitor, record: RequestRecord) -> None:
        self._sampling = request.sampling
        self._num_seqs, self._num_told = self._sampling.num_seqs, self._sampling.n
        self._visitor = visitor
        self._record = record
        visitor.use_prompt(request.num_prompt_tokens)

    def on_tokens(self, index: int, count: int) -> None:
        """Of a search the results are told, and all beams were generated."""
        is_first = self._record.ttft_s is None
        self._record.on_tokens(index, count)
        if is_first and self._record.ttft_s is not None:
            self._visitor.note_first_token(self._record.ttft_s)
        self._visitor.use_generated(count * self._num_seqs // self._num_told)

    def close(self) -> None:
        """How far a search had come is not told before its end."""
        if self._sampling.beam is not None and self._record.outcome == CANCELLED:
            self._visitor.use_all()


@asynccontextmanager
async def generating(
    gateway: Gateway,
    request: GenerationRequest,
    answer_id: str,
    visitor: Visitor,
    session: str,
    record: RequestRecord,
) -> AsyncIterator[Generation]:
    """Scope of a request inside the engine. What it takes is booked with ``visitor`` and on ``record``."""
    tenant = visitor.tenant
    requests = engine_requests(request, answer_id, tenant, session, gateway.kv_quota(tenant))
    if request.sampling.max_tokens:
        gateway.tide.note(tenant, session, answer_id)
    booking = Booking(request, visitor, record)
    limits, rounds = gateway.settings.stream_limits, gateway.rounds
    stream = TokenStream(gateway.engine, requests, limits, booking.on_tokens, rounds)
    try:
        async with gateway.streams.open(stream):
            yield Generation(request, stream, gateway.model.codec.table)
    finally:
        booking.close()


def told_failure(failure: StreamFailure, request: GenerationRequest, name: str) -> ApiError:
    """A failure as the client gets it; the rest of it is for the log, where the request has this name."""
    is_theirs = failure.kind is FailureKind.REQUEST_INVALID
    log.log(
        logging.INFO if is_theirs else logging.ERROR,
        "%s ended without an answer: %s %s",
        name,
        failure.message,
        failure.detail,
    )
    return from_failure(failure, request.grammar_param if is_theirs else None)
