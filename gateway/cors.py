"""Which web pages may read our answers in a browser (CORS), and what they are told.

Pure. Off unless origins are named: a browser then lets no page of another origin read anything. We
set no cookies and allow no credentials, so a page can do no more than a program with the same API key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from engine.config import ConfigError
from gateway.limits import RATE_LIMIT_HEADERS

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+|null")
_METHODS = "GET, POST, OPTIONS"
_REQUEST_HEADERS = "Authorization, Content-Type, X-Request-Id, *"  # a star does not stand for Authorization
_OUR_HEADERS = ["x-request-id", "retry-after", "retry-after-ms", "x-tidegate-max-tokens-clamped"]
_EXPOSED = {"Access-Control-Expose-Headers": ", ".join((*_OUR_HEADERS, *RATE_LIMIT_HEADERS, "*"))}
_PREFLIGHT_MAX_AGE_S = 600


def parse_origin(text: str) -> str:
    """An origin as browsers write it, such as ``https://chat.example``, or ``*``. Raises ConfigError."""
    origin = text.lower().removesuffix("/")
    if origin == ANY_ORIGIN or _ORIGIN.fullmatch(origin):
        return origin
    raise ConfigError(
        f"{text!r} is no origin; write it like https://chat.example or http://localhost:3000, without a path."
    )


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser asks beforehand if a page may send a request."""
    return method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


def is_same_host(origin: str, host: str) -> bool:
    """Whether a page of this origin is from where its request goes to, which is the ``Host`` header."""
    scheme, _, page_host = origin.lower().partition("://")
    default_port = {"http": ":80", "https": ":443"}.get(scheme)
    if default_port is None or not host:
        return False
    return page_host.removesuffix(default_port) == host.lower().removesuffix(default_port)


class CorsPolicy:
    """``origins`` are those allowed; ``*`` among them allows all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._allows_any = ANY_ORIGIN in self._origins

    def headers(self, request: Mapping[str, str]) -> dict[str, str]:
        """What every answer carries, be it an error or a stream."""
        if self._allows_any:
            return {"Access-Control-Allow-Origin": ANY_ORIGIN, **_EXPOSED}
        origin = request.get("Origin", "")
        allowed = {"Access-Control-Allow-Origin": origin, **_EXPOSED} if self.allows(origin) else {}
        return {"Vary": "Origin", **allowed}

    def allows(self, origin: str) -> bool:
        return self._allows_any or origin in self._origins

    def preflight(self) -> dict[str, str]:
        """What the answer to a preflight carries besides. Without an allowed origin the browser refuses."""
        return {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _REQUEST_HEADERS,
            "Access-Control-Max-Age": str(_PREFLIGHT_MAX_AGE_S),
        }
