"""HTTP handlers of the two generation endpoints, and of the two that only look at tokens.

Runs on the event loop; never blocks: the body is parsed and tokenized on the offload threads. Every
resource is held by scope (permit, record, stream), so a client that goes away, which cancels the
handler, frees all of it. A failure before the first byte of a stream is an HTTP status; after it, an
in-band error and ``[DONE]``. Each failure is logged once, with the request id.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Protocol, TypeVar

from aiohttp import web
from msgspec import UNSET

from engine.messages import FinishReason, PromptLogprobs
from gateway.answer import Piece
from gateway.errors import ApiError, ErrorKind
from gateway.generation import Generation, Progress
from gateway.mailbox import StreamFailedError
from gateway.metrics import RequestRecord
from gateway.openai.answers import AnswerFormat, Identity, WholeChoice, join
from gateway.openai.validated import GenerationRequest
from gateway.protocol import sse
from gateway.request_keys import GATEWAY, request_id_of, visitor_of
from gateway.sse_writer import SseWriter
from gateway.state import Gateway
from gateway.submission import generating, service_for, session_of_key, told_failure
from gateway.tenant_register import Visitor

log = logging.getLogger("tidegate.gateway")

CLAMPED_HEADER = "x-tidegate-max-tokens-clamped"
_LARGE_ANSWER_ENTRIES = 2_000
Result = TypeVar("Result")


class Endpoint(Protocol):
    """What the handlers need of ``/v1/completions`` and ``/v1/chat/completions``."""

    @property
    def id_prefix(self) -> str: ...

    def parse(self, body: bytes) -> GenerationRequest: ...

    def answer(self, request: GenerationRequest, identity: Identity) -> AnswerFormat: ...


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    return await _generate(request, request.app[GATEWAY].completions)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await _generate(request, request.app[GATEWAY].chat)


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize."""
    return await _transform(request, request.app[GATEWAY].tokens.tokenize)


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize."""
    return await _transform(request, request.app[GATEWAY].tokens.detokenize)


async def _transform(http: web.Request, work: Callable[[bytes], bytes]) -> web.Response:
    gateway = http.app[GATEWAY]
    visitor = known_visitor(http)
    async with gateway.bodies.read(http, visitor.holder) as body:
        visitor.count_request()
        answer = await gateway.try_offload(visitor.holder, work, body)
        return web.Response(body=answer, content_type="application/json")


async def _generate(http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
    gateway = http.app[GATEWAY]
    with gateway.metrics.request() as record:
        try:
            gateway.check_open()
            async with AsyncExitStack() as scope:
                request = await _take_in(http, gateway, endpoint, scope)
                return await _Answering(http, gateway, endpoint, request, record).run()
        except ApiError as error:
            record.outcome = error.kind.value
            raise
        except ConnectionResetError:  # the client went: the outcome stays "cancelled"
            raise
        except Exception:
            record.outcome = ErrorKind.INTERNAL.value
            raise


async def _take_in(
    http: web.Request, gateway: Gateway, endpoint: Endpoint, scope: AsyncExitStack
) -> GenerationRequest:
    """Read and check a request. Its permits, one for each of its sequences, and the tokens reserved for it
    are held until ``scope`` ends.
    """
    visitor = known_visitor(http)
    async with gateway.bodies.read(http, visitor.holder) as body:
        gateway.check_open()
        scope.enter_context(gateway.admission.permit(visitor.holder))
        scope.enter_context(visitor.entered())
        request = await gateway.try_offload(visitor.holder, endpoint.parse, body)
        num_tokens = request.num_reserved_tokens
        scope.enter_context(gateway.admission.permit(visitor.holder, request.num_seqs - 1, num_tokens))
        scope.enter_context(visitor.answering(request.num_seqs, num_tokens))
        return request


def known_visitor(http: web.Request) -> Visitor:
    """Of a path of the API, where nobody comes in unknown."""
    visitor = visitor_of(http)
    assert visitor is not None
    return visitor


class _Outlet:
    """Writes what comes of choices that are open already. Implements Outlet."""

    def __init__(self, writer: SseWriter, events: Callable[[Progress], bytes]) -> None:
        self._writer = writer
        self._events = events
        self.is_clear = writer.is_clear

    def show(self, progress: Progress) -> None:
        if events := self._events(progress):
            self._writer.send_now(events)


class _Gathered:
    """What comes of an answer that is told as a whole. Implements Outlet."""

    def __init__(self) -> None:
        self.pieces: dict[int, list[Piece]] = defaultdict(list)
        self.reasons: dict[int, FinishReason] = {}

    def is_clear(self) -> bool:
        return True

    def show(self, progress: Progress) -> None:
        for part in progress.pieces:
            self.pieces[part.index].append(part.piece)
            if part.finish_reason is not None:
                self.reasons[part.index] = part.finish_reason


class _Answering:
    """One validated request, from submitting it to the last byte of its answer."""

    __slots__ = ("_format", "_gateway", "_headers", "_http", "_id", "_record", "_request", "_visitor")

    def __init__(
        self,
        http: web.Request,
        gateway: Gateway,
        endpoint: Endpoint,
        request: GenerationRequest,
        record: RequestRecord,
    ) -> None:
        self._http = http
        self._gateway = gateway
        self._request = request
        self._record = record
        self._visitor = known_visitor(http)
        self._id = endpoint.id_prefix + uuid.uuid4().hex
        service = service_for(self._visitor.tenant, request)
        identity = Identity(
            self._id,
            int(time.time()),
            request.model,
            gateway.model.fingerprint,
            service.tier.value if service.is_told else UNSET,
        )
        self._format = endpoint.answer(request, identity)
        self._headers: dict[str, str] = {}
        if request.clamped_from is not None:
            self._headers[CLAMPED_HEADER] = str(request.least_max_tokens)

    async def run(self) -> web.StreamResponse:
        """Answer. Raises ApiError for a failure that can still become a status."""
        session = session_of_key(self._visitor.tenant, self._request)
        async with generating(
            self._gateway, self._request, self._id, self._visitor, session, self._record
        ) as generation:
            if self._request.stream:
                writer = SseWriter(self._http, generation.stream, self._headers)
                return await self._streamed(generation, writer)
            return await self._plain(generation)

    async def _plain(self, generation: Generation) -> web.Response:
        gathered = _Gathered()
        pieces, reasons, usage = gathered.pieces, gathered.reasons, None
        try:
            while usage is None:
                progress = await generation.next(outlet=gathered)
                assert progress is not None
                gathered.show(progress)
                usage = progress.usage
        except StreamFailedError as error:
            raise self._failed(error) from None
        self._record.outcome = _outcome(reasons.values())
        choices = [
            WholeChoice(join(pieces[index]), reasons[index].value, generation.prompt_logprobs(index))
            for index in generation.shown()
        ]
        num_entries = sum(len(choice.piece.entries) + len(choice.prompt_logprobs or ()) for choice in choices)
        if num_entries > _LARGE_ANSWER_ENTRIES:
            body = await self._off_loop(self._format.whole, choices, usage)
        else:
            body = self._format.whole(choices, usage)
        return web.Response(body=body, content_type="application/json", headers=self._headers)

    async def _streamed(self, generation: Generation, writer: SseWriter) -> web.StreamResponse:
        try:
            await self._pump(generation, writer)
            await writer.finish()
        except StreamFailedError as error:
            await self._fail(writer, self._failed(error))
        except ConnectionResetError:
            pass  # the client went: the outcome stays "cancelled"
        except Exception:
            if not writer.started:
                raise
            log.exception("request %s (%s) failed while streaming", request_id_of(self._http), self._id)
            await self._fail(writer, ApiError(ErrorKind.INTERNAL, "The server failed to go on."))
        finally:
            await writer.close()
        return writer.response

    async def _pump(self, generation: Generation, writer: SseWriter) -> None:
        """Events until the end. A keep-alive may be the first thing that goes out."""
        opened: set[int] = set()
        reasons: list[FinishReason] = []

        def events_of(progress: Progress) -> bytes:
            self._count(generation)
            return self._events(progress, reasons)

        outlet = _Outlet(writer, events_of)
        while True:
            is_open = len(opened) == generation.num_choices
            progress = await generation.next(self._gateway.settings.keepalive_s, outlet if is_open else None)
            if progress is None:
                await writer.send(sse.KEEP_ALIVE)
                continue
            self._count(generation)
            openings: dict[int, list[bytes]] = {}
            for part in progress.pieces:
                if part.index not in opened:
                    opened.add(part.index)
                    prompt_logprobs = generation.prompt_logprobs(part.index)
                    openings[part.index] = await self._opening(part.index, prompt_logprobs)
            events = self._events(progress, reasons, openings)
            if progress.usage is not None:
                self._record.outcome = _outcome(reasons)
                await writer.send(events + sse.DONE)
                return
            if events:
                await writer.send(events)

    def _events(
        self,
        progress: Progress,
        reasons: list[FinishReason],
        openings: Mapping[int, list[bytes]] = MappingProxyType({}),
    ) -> bytes:
        """What is told of it, with the ``openings`` of choices before their first pieces.

        ``reasons`` gets those that are in it.
        """
        payloads: list[bytes] = []
        for part in progress.pieces:
            payloads += openings.get(part.index, ())
            if part.piece:
                payloads += self._format.piece(part.index, part.piece)
            if part.finish_reason is not None:
                payloads.append(self._format.closing(part.index, part.finish_reason.value))
                reasons.append(part.finish_reason)
        if progress.usage is not None and self._request.include_usage:
            payloads.append(self._format.usage(progress.usage))
        return b"".join(map(sse.event, payloads))

    def _count(self, generation: Generation) -> None:
        """Usage goes into every chunk, if that was asked for."""
        if self._request.continuous_usage:
            self._format.count(generation.usage())

    async def _opening(self, index: int, prompt_logprobs: PromptLogprobs | None) -> list[bytes]:
        if len(prompt_logprobs or ()) > _LARGE_ANSWER_ENTRIES:
            opening = await self._off_loop(self._format.opening, index, prompt_logprobs)
        else:
            opening = self._format.opening(index, prompt_logprobs)
        return [] if opening is None else [opening]

    async def _off_loop(self, work: Callable[..., Result], *args: object) -> Result:
        return await self._gateway.offload.run(work, *args, owner=self._visitor.holder.name)

    async def _fail(self, writer: SseWriter, error: ApiError) -> None:
        self._record.outcome = error.kind.value
        if not writer.started:
            raise error
        with contextlib.suppress(ConnectionResetError):
            await writer.fail(error, self._gateway.settings.linger_s)

    def _failed(self, error: StreamFailedError) -> ApiError:
        name = f"request {request_id_of(self._http)} ({self._id})"
        found = told_failure(error.failure, self._request, name)
        self._record.outcome = found.kind.value
        return found


def _outcome(reasons: Iterable[FinishReason]) -> str:
    """Of a request: that of its choices, or if they differ that some were cut short."""
    return FinishReason.LENGTH.value if FinishReason.LENGTH in set(reasons) else FinishReason.STOP.value
