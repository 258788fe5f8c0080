"""What one gateway consists of, its settings, and how it drains.

Runs on the event loop. ``Gateway`` owns the offload threads and knows every open stream; the engine
is handed in and closed by whoever made it. Streams are bounded by the admission permits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.client import Engine, EngineHealth
from engine.messages import DEFAULT_KV_QUOTA, EngineInfo, StepReport
from gateway.admission import Admission
from gateway.chat_template import ChatTemplate, TemplateRenderError
from gateway.connection_limits import ConnectionLimits, OpenConnections, WebSocketLimits
from gateway.cors import CorsPolicy
from gateway.errors import ApiError, ErrorKind, no_engine, shutting_down
from gateway.mailbox import SHUTDOWN, StreamFailure, StreamLimits
from gateway.metrics import Metrics
from gateway.offload import Offload, OffloadFullError
from gateway.open_sockets import OpenSockets
from gateway.openai.chat import ChatEndpoint
from gateway.openai.chat_style import ChatStyle, choose_style
from gateway.openai.completions import CompletionsEndpoint
from gateway.openai.model import ModelContext
from gateway.openai.tokens import TokensEndpoint
from gateway.openapi import About, document
from gateway.request_body import BodyReader
from gateway.responses.records import StateSettings
from gateway.rounds import Rounds
from gateway.service_rate import ServiceRate
from gateway.shared_room import Holder
from gateway.tenant_register import TenantRegister
from gateway.tenants import Tenant
from gateway.tickets import TicketOffice
from gateway.tide_feed import TideFeed
from gateway.tls import TlsFiles
from gateway.token_stream import TokenStream
from gateway.tokenizer import TextCodec
from gateway.web_page import WebFile, load_web_files

log = logging.getLogger("tidegate.gateway")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything that can be set. Times in seconds.

    Without ``api_keys`` and ``keys_file`` everybody is let in; without ``admin_key`` there is no ``/debug``.
    ``served_model_names`` empty means the engine's own name; ``max_num_seqs`` is the engine's batch,
    ``max_waiting`` how many sequences may be in the house beyond it, and ``max_waiting_tokens`` how many
    tokens they may take beyond what the device pool holds. ``kv_quota`` is the share of each tier that a
    tenant may keep of which nothing else is said. ``send_buffer_bytes`` bounds what the
    kernel holds for a client that does not read. ``linger_s`` is how long a client that is given up may take
    to read why. ``detached_s`` is how long a stored response goes on with nobody following
    it, and how long the events of one that has ended can be had; ``max_event_log_bytes`` bounds those of one,
    ``max_ended_log_bytes`` those of all that have ended.
    ``tool_call_parser`` and ``reasoning_parser`` are as ``choose_style`` takes them.
    ``cors_origins`` empty lets no web page of another origin read anything; without ``tls``
    plain HTTP is spoken. ``web`` serves the chat page and its tide map, with
    a snapshot each ``tide_interval_s``.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    keys_file: Path | None = None
    admin_key: str | None = field(default=None, repr=False)
    served_model_names: tuple[str, ...] = ()
    max_num_seqs: int = 64
    max_waiting: int = 256
    max_waiting_tokens: int = 512 * 2**10
    kv_quota: float = DEFAULT_KV_QUOTA
    max_body_bytes: int = 8 * 2**20
    max_total_body_bytes: int = 256 * 2**20
    body_timeout_s: float = 60.0
    keepalive_s: float = 10.0
    drain_timeout_s: float = 30.0
    linger_s: float = 5.0
    send_buffer_bytes: int = 64 * 2**10
    offload_threads: int = 2
    cors_origins: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    web: bool = True
    tide_interval_s: float = 0.4
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    stream_limits: StreamLimits = field(default_factory=StreamLimits)
    detached_s: float = 30.0
    max_event_log_bytes: int = 2**20
    max_ended_log_bytes: int = 32 * 2**20
    websocket_limits: WebSocketLimits = field(default_factory=WebSocketLimits)
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    state: StateSettings = field(default_factory=StateSettings)


class OpenStreams:
    """Every stream inside the engine. Bound: one per admission permit."""

    def __init__(self) -> None:
        self._streams: set[TokenStream] = set()
        self._ended_by: StreamFailure | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(stream.request_id for stream in self._streams)

    @asynccontextmanager
    async def open(self, stream: TokenStream) -> AsyncIterator[TokenStream]:
        """Scope of a stream. After ``end_all`` a new one ends at once in the same way."""
        self._streams.add(stream)
        try:
            if self._ended_by is not None:
                stream.end(self._ended_by)
            else:
                stream.submit()
            yield stream
        finally:
            self._streams.discard(stream)
            stream.release()

    def end_all(self, failure: StreamFailure) -> None:
        self._ended_by = failure
        for stream in tuple(self._streams):
            stream.end(failure)


@dataclass(frozen=True, slots=True)
class Assets:
    """What is read from files at the start. ``template`` is None if the model has none."""

    codec: TextCodec
    template: ChatTemplate | None
    style: ChatStyle
    version: str
    web_files: Mapping[str, WebFile]

    @classmethod
    def load(cls, info: EngineInfo, settings: GatewaySettings) -> Assets:
        """Blocks for up to a second; raises UnsupportedTokenizerError and what ``choose_style`` raises."""
        template = _load_template(info)
        style = choose_style(template, settings.tool_call_parser, settings.reasoning_parser)
        web_files = load_web_files() if settings.web else {}
        return cls(TextCodec.load(info.tokenizer_dir), template, style, package_version(), web_files)


class Gateway:
    """The parts of a running gateway. Made by ``open_gateway``."""

    def __init__(
        self, engine: Engine, settings: GatewaySettings, assets: Assets, tenants: TenantRegister
    ) -> None:
        info = engine.info
        self.engine = engine
        self.settings = settings
        self.tenants = tenants
        self.version = assets.version
        self.started_at = int(time.time())
        self.model = ModelContext(
            names=settings.served_model_names or (info.model_name,),
            codec=assets.codec,
            window=info.max_model_len,
            vocab_size=info.vocab_size,
            fingerprint=_fingerprint(info, self.version),
            sampling_defaults=info.sampling_defaults,
            max_num_seqs=settings.max_num_seqs,
            max_in_flight=settings.max_num_seqs + settings.max_waiting,
            num_blocks=info.num_blocks,
            block_size=info.block_size,
        )
        self.completions = CompletionsEndpoint(self.model)
        self.chat = ChatEndpoint(self.model, assets.template, assets.style)
        self.tokens = TokensEndpoint(self.model, self.chat)
        self.offload = Offload(settings.offload_threads)
        self.bodies = BodyReader(
            settings.max_body_bytes, settings.max_total_body_bytes, settings.body_timeout_s
        )
        self._rate = ServiceRate()
        pool_tokens = max(info.num_blocks * info.block_size, info.max_model_len)
        self.admission = Admission(
            self.model.max_in_flight, pool_tokens + settings.max_waiting_tokens, self._rate
        )
        engine.add_step_listener(self._on_step)
        self.metrics = Metrics(engine)
        self.streams = OpenStreams()
        self.rounds = Rounds(lambda: engine.is_behind)
        self.cors = CorsPolicy(settings.cors_origins) if settings.cors_origins else None
        self.connections = OpenConnections(settings.connection_limits.max_connections)
        self.metrics.connections.set_function(lambda: self.connections.count)
        self.sockets = OpenSockets()
        self.metrics.websockets.set_function(lambda: len(self.sockets))
        self.tickets = TicketOffice(settings.websocket_limits.ticket_ttl_s)
        self.tide = TideFeed(
            engine,
            settings.tide_interval_s,
            is_shared=lambda: tenants.is_shared,
            condition=lambda: self.condition,
        )
        self.web_files = assets.web_files
        self.draining = False
        self.openapi = msgspec.json.encode(document(self.model, self._about()))

    @property
    def condition(self) -> str:
        """One word for ``/health``: ok, draining, stalled, restarting or dead."""
        health = self.engine.health()
        return "draining" if self.draining and health is EngineHealth.OK else health.value

    def kv_quota(self, tenant: Tenant) -> float:
        """Share of each tier's blocks that a tenant may keep."""
        return self.settings.kv_quota if tenant.kv_quota is None else tenant.kv_quota

    def check_open(self) -> None:
        """Raises ApiError if nothing new is taken in: the server is stopping, or there is no engine."""
        if self.draining:
            raise shutting_down()
        if self.engine.health() in (EngineHealth.RESTARTING, EngineHealth.DEAD):
            raise no_engine(self.engine.restart_in_s)

    async def try_offload(self, holder: Holder, work: Callable[..., T], *args: object) -> T:
        """``work(*args)`` off the loop, of what somebody sent. Raises ApiError (429) if too much waits."""
        try:
            return await self.offload.try_run(work, *args, owner=holder.name)
        except OffloadFullError:
            raise ApiError(ErrorKind.BUSY, "Too many prompts wait to be read.", retry_after_s=1) from None

    def _about(self) -> About:
        settings = self.settings
        return About(
            self.version,
            settings.max_body_bytes,
            needs_key=not self.tenants.is_open_to_all,
            has_admin_key=settings.admin_key is not None,
            has_web=settings.web,
        )

    async def drain(self, timeout_s: float, hurry: asyncio.Event | None = None) -> None:
        """Refuse what is new, let what runs finish for ``timeout_s``, then end the rest in band.

        ``hurry``, once set, cuts the time short.
        """
        self.draining = True
        self.sockets.leave(shutting_down())
        log.info("stopping; %d requests have %g s to finish", self.admission.in_flight, timeout_s)
        waits: list[asyncio.Task[object]] = [asyncio.create_task(self.admission.wait_idle())]
        if hurry is not None:
            waits.append(asyncio.create_task(hurry.wait()))
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        if self.admission.in_flight:
            log.warning("giving up %d requests that did not finish in time", self.admission.in_flight)
            self.streams.end_all(SHUTDOWN)
        self.tide.end_all()
        await self._wait_for_last_words()

    async def close(self) -> None:
        """Stop the tide feed and the offload threads. The engine stays with its owner."""
        await self.tide.close()
        await self.offload.close()

    def _on_step(self, report: StepReport) -> None:
        if not self.engine.is_behind:
            self.rounds.run()
        stats = report.stats
        served = stats.prompt_tokens_total + stats.generated_tokens_total
        self._rate.note_step(served, sum(report.stage_seconds.values()))

    async def _wait_for_last_words(self) -> None:
        try:
            async with asyncio.timeout(self.settings.linger_s + 1):
                await self.admission.wait_idle()
                await self.sockets.wait_closed()
        except TimeoutError:
            busy = (self.admission.in_flight, len(self.sockets))
            log.warning("%d handlers and %d WebSockets are still busy", *busy)


async def open_gateway(
    engine: Engine, settings: GatewaySettings, tenants: TenantRegister | None = None
) -> Gateway:
    """Load the tokenizer and the template of the engine's model.

    ``tenants`` are those of the settings, if they are not open yet. Raises UnsupportedTokenizerError or
    KeysFileError, and ToolParserError or ReasoningParserError for a parser that does not fit. A chat template
    that does not parse is left out with a warning: chat then answers 400 and completions work.
    """
    assets = await asyncio.to_thread(Assets.load, engine.info, settings)
    if tenants is None:
        tenants = await asyncio.to_thread(TenantRegister.open, settings.api_keys, settings.keys_file)
    return Gateway(engine, settings, assets, tenants)


def package_version() -> str:
    """Of the installed distribution."""
    try:
        return metadata.version("tidegate")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def _load_template(info: EngineInfo) -> ChatTemplate | None:
    if info.chat_template is None:
        return None
    try:
        return ChatTemplate(info.chat_template, bos_token=info.bos_token, eos_token=info.eos_token)
    except TemplateRenderError as error:
        log.warning("%s Chat completions are off.", error)
        return None


def _fingerprint(info: EngineInfo, version: str) -> str:
    """Changes whenever the same seed may give another text."""
    parts = (version, info.model_name, info.architecture, info.dtype, info.device, info.attention_backend)
    return "fp_" + hashlib.blake2s("\0".join(parts).encode(), digest_size=6).hexdigest()
