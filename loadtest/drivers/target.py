"""The server to be measured, as the user names it. Values only.

What of it may hold a secret (``headers``) is left out of its ``repr``, and of every report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

ApiName = Literal["chat", "completions", "responses"]
TransportName = Literal["sse", "ws"]
_SECRET_LEN = 8  # shorter words of headers stand in any sentence
_PORTS = {"http": 80, "https": 443}


class TargetError(ValueError):
    """Such a server cannot be asked in such a way. The message is a plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to. ``prefix``: of all paths, without a slash at its end."""

    host: str
    port: int
    uses_tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """As the ``Host`` of a request has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.uses_tls else "http"] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.uses_tls else 'http'}://{self.authority}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Target:
    """``timeout_s``: from a request's sending to the end of its answer.

    ``tokenizer`` is the path of a ``tokenizer.json``, for servers that have no ``/tokenize``. ``extra`` has
    fields that every body gets besides, such as a temperature. Raises TargetError.
    """

    base_url: str  # with or without /v1
    model: str = ""  # left out: the first that the server names
    api: ApiName = "chat"
    transport: TransportName = "sse"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 600.0
    tokenizer: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.address
        if self.transport == "ws" and self.api != "responses":
            raise TargetError("Only the Responses API is spoken over a WebSocket; ask for that, or for SSE.")
        for name, value in self.headers.items():
            if not name or not f"{name}{value}".isprintable() or not f"{name}{value}".isascii():
                raise TargetError("The name and the value of a header must be printable ASCII on one line.")

    def without_secrets(self, text: str) -> str:
        """What a server says, without what it was sent in headers."""
        words = {word for value in self.headers.values() for word in value.split()}
        for word in sorted(words, key=len, reverse=True):
            if len(word) >= _SECRET_LEN:
                text = text.replace(word, "***")
        return text

    @property
    def address(self) -> Address:
        """Raises TargetError."""
        try:
            parts = urlsplit(self.base_url)
            port = parts.port
        except ValueError:
            raise TargetError("The base URL is none; it looks like http://127.0.0.1:8000.") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
            raise TargetError("The base URL must look like http://127.0.0.1:8000 or https://host/prefix.")
        if not parts.path.isascii() or any(map(str.isspace, parts.path)):
            raise TargetError("The path of the base URL must be written in ASCII and without spaces: %20.")
        if parts.username is not None:
            raise TargetError("The base URL must have no user name in it; send an API key or a header.")
        prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return Address(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", prefix)
