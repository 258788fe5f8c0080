"""Handlers that tell about the server: models, health, metrics, version, the API's description,
integrity, KV.

Runs on the event loop. ``/health`` and ``/metrics`` need no key, ``/debug`` the admin key. A
health check that fails is answered 503 with one word in its body that says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from engine.client import Engine, EngineDeadError
from engine.stats import EngineStats
from gateway.errors import ApiError, ErrorKind, no_engine
from gateway.metrics import CONTENT_TYPE
from gateway.probe_answers import Health, Integrity, KvPlaces, ModelCard, ModelList, Version
from gateway.request_keys import GATEWAY
from gateway.state import Gateway

_ENGINE_TIMEOUT_S = 10
_MAX_SEQUENCES = 1000  # in one /debug/kv
Answer = TypeVar("Answer")


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def models(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    return json_response(ModelList(data=[_card(gateway, name) for name in gateway.model.names]))


async def model(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    name = request.match_info["name"]
    if name not in gateway.model.names:
        raise ApiError(ErrorKind.MODEL_NOT_FOUND, "This server has no model of that name.", param="model")
    return json_response(_card(gateway, name))


async def health(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    stats = gateway.engine.stats
    condition = gateway.condition
    body = Health(status=condition, running=stats.num_running, waiting=stats.num_waiting)
    return json_response(body, 200 if condition == "ok" else 503)


async def metrics(request: web.Request) -> web.Response:
    body = request.app[GATEWAY].metrics.render()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def integrity(request: web.Request) -> web.Response:
    """The engine's recount of every block, on demand."""
    engine = request.app[GATEWAY].engine
    report = await _answer(engine, engine.check_integrity())
    return json_response(Integrity(problems=report.problems, stats=_readable(report.stats)))


async def kv(request: web.Request) -> web.Response:
    """What the tiers hold, and for each request where its blocks are."""
    engine = request.app[GATEWAY].engine
    report = await _answer(engine, engine.describe_kv(_MAX_SEQUENCES))
    stats = _readable(report.stats)
    return json_response(
        KvPlaces(
            tiers=stats["tiers"],
            transfers=stats["transfers"],
            costs=report.costs,
            num_requests=report.num_requests,
            sequences=report.sequences,
        )
    )


async def _answer(engine: Engine, question: Awaitable[Answer]) -> Answer:
    try:
        async with asyncio.timeout(_ENGINE_TIMEOUT_S):
            return await question
    except TimeoutError:
        raise ApiError(ErrorKind.ENGINE_BUSY, "The engine does not answer.", retry_after_s=10) from None
    except EngineDeadError:
        raise no_engine(engine.restart_in_s) from None


def _readable(stats: EngineStats) -> dict[str, Any]:
    """With the fields of tiers and transfers by name, which travel between the processes without."""
    fields: dict[str, Any] = msgspec.structs.asdict(stats)
    for name in ("tiers", "transfers"):
        fields[name] = {key: msgspec.structs.asdict(value) for key, value in fields[name].items()}
    return fields


async def version(request: web.Request) -> web.Response:
    return json_response(Version(version=request.app[GATEWAY].version))


async def openapi(request: web.Request) -> web.Response:
    return web.Response(body=request.app[GATEWAY].openapi, content_type="application/json")


def _card(gateway: Gateway, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=gateway.started_at,
        max_model_len=gateway.model.window,
        capabilities=gateway.chat.capabilities,
    )
