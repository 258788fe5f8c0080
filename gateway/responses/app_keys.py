"""Typed keys of what the responses' handlers find on an aiohttp application."""

from __future__ import annotations

from aiohttp import web

from gateway.responses.service import ResponseService

RESPONSES = web.AppKey("tidegate_responses", ResponseService)
