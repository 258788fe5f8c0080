"""Self-signed certificates, made by the ``openssl`` command."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate for 127.0.0.1 and of its key."""

    certfile: str
    keyfile: str

    @property
    def trust(self) -> ssl.SSLContext:
        """Of a client that trusts this certificate and no other."""
        return ssl.create_default_context(cafile=self.certfile)


def make_certificate(folder: Path, name: str, password: str | None = None) -> Certificate:
    """Skips the test where there is no ``openssl``, and fails it in CI."""
    if shutil.which("openssl") is None:
        if os.environ.get("CI"):
            pytest.fail("there is no openssl command, so TLS is not tested")
        pytest.skip("there is no openssl command")
    made = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    command += ["-keyout", made.keyfile, "-out", made.certfile]
    subprocess.run(command, check=True, capture_output=True)
    return made
