"""The chat page's files, in memory, and the headers that keep the page to itself.

Read once, at the start; after that nothing here touches the disk. A file is known by its path under
``/web/``, and no other path leads anywhere. Browsers ask each time whether a file is still the same, which
its tag answers: a new release shows at the next visit, and nothing else is sent twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = Path(__file__).parent / "web"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
)  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """``tag`` is of its content, for ``ETag``."""

    body: bytes = field(repr=False)
    tag: str
    headers: Mapping[str, str]


def load_web_files() -> dict[str, WebFile]:
    """By path under ``/web/``; what has no type there (licences) is not served. Blocks for the disk."""
    paths = [path for path in sorted(_FOLDER.rglob("*")) if path.suffix in _TYPES]
    return {path.relative_to(_FOLDER).as_posix(): _load(path) for path in paths}


def _load(path: Path) -> WebFile:
    body = path.read_bytes()
    return WebFile(
        body,
        hashlib.blake2s(body, digest_size=12).hexdigest(),
        {**_HEADERS, "Content-Type": _TYPES[path.suffix]},
    )
