"""Typed keys of what the responses' handlers find on an aiohttp application."""

from __future__ import annotations

from aiohttp import web

from gateway.responses.service import ResponseService
from gateway.responses.store import StateStore

STORE = web.AppKey("tidegate_state_store", StateStore)
RESPONSES = web.AppKey("tidegate_responses", ResponseService)
