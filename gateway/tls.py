"""The server's certificate and key: read from files before anything slow is done, and again on request.

Runs on: whoever starts a server, whom the first read blocks; later on the event loop, and the reads on a
thread. Whatever is wrong with the files is a ConfigError that names the option to put right; a key that wants
a password never asks for it on the terminal.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from engine.config import ConfigError

log = logging.getLogger("tidegate.gateway")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. Without ``keyfile`` the key is in ``certfile``, beside the chain of certificates."""

    certfile: str
    keyfile: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def key_path(self) -> str:
        return self.certfile if self.keyfile is None else self.keyfile

    @property
    def key_option(self) -> str:
        return "--ssl-certfile" if self.keyfile is None else "--ssl-keyfile"


class ServerTls:
    """TLS 1.2 and 1.3 with Python's choice of ciphers. Raises ConfigError.

    ``context`` is what a server listens with. OpenSSL forbids changing one that is in use, so each new
    connection is handed on to the latest, whether or not its client names a host.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._latest = self.context = _context(files)
        self.context.sni_callback = self._hand_on

    async def reload(self) -> None:
        """Read the files again, for connections to come. If they cannot be used the old ones stay."""
        try:
            self._latest = await asyncio.to_thread(_context, self._files)
        except ConfigError as error:
            log.error("the certificate stays as it was: %s", error)
        else:
            log.info("the certificate was read again")

    def _hand_on(self, connection: ssl.SSLObject, host: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._latest


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    _require("--ssl-certfile", files.certfile, "-----BEGIN CERTIFICATE-----", "certificate")
    _require(files.key_option, files.key_path, "PRIVATE KEY-----", "private key")
    is_encrypted = False

    def password() -> str:
        nonlocal is_encrypted
        is_encrypted = True
        return files.password or ""

    try:
        context.load_cert_chain(files.certfile, files.keyfile, password)
    except (ssl.SSLError, ValueError) as error:
        if is_encrypted and files.password is None:
            problem = "is encrypted; set TIDEGATE_SSL_KEYFILE_PASSWORD"
        elif is_encrypted:
            problem = "cannot be opened with the password given"
        elif getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            problem = f"does not belong to the certificate in {files.certfile}"
        else:
            problem = f"cannot be used with {files.certfile}: {getattr(error, 'reason', None) or error}"
        raise ConfigError(f"The key in {files.key_path} ({files.key_option}) {problem}.") from None


def _require(option: str, path: str, mark: str, what: str) -> None:
    try:
        text = Path(path).read_text(encoding="latin-1")
    except OSError as error:
        raise ConfigError(f"Cannot read {option} {path}: {error.strerror or error}.") from None
    if mark not in text:
        raise ConfigError(f"There is no {what} in PEM form in {option} {path}.")
