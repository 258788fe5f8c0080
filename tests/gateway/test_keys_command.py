"""``tidegate keys``: hashes that the keys file takes, and keys that are shown once."""

from __future__ import annotations

import hashlib

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.tenants import digest_of, make_keyring


def test_new_gives_a_key_and_its_hash() -> None:
    result = CliRunner().invoke(main, ["keys", "new"])
    assert result.exit_code == 0
    (_, key), (_, digest) = (line.split() for line in result.stdout.splitlines())
    assert hashlib.sha256(key.encode()).hexdigest() == digest
    assert make_keyring((key,), []).find(digest_of(key.encode())) is not None


@pytest.mark.parametrize("end", ["", "\n", " \r\n"])
def test_hash_reads_a_pipe(end: str) -> None:
    key = "tg-0123456789abcdefghij"
    result = CliRunner().invoke(main, ["keys", "hash"], input=key + end)
    assert result.exit_code == 0
    assert result.stdout == hashlib.sha256(key.encode()).hexdigest() + "\n"
    assert result.stderr == ""


def test_a_key_that_can_be_guessed_is_warned_of_and_an_empty_one_refused() -> None:
    result = CliRunner().invoke(main, ["keys", "hash"], input="secret\n")
    assert (result.exit_code, len(result.stdout)) == (0, 65)
    assert "guessed" in result.stderr and "secret" not in result.stderr
    assert CliRunner().invoke(main, ["keys", "hash"], input="\n").exit_code == 2
