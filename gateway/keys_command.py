"""``tidegate keys``: makes API keys, and the hashes that a keys file has in their place."""

from __future__ import annotations

import sys

import click

from gateway.tenants import hash_key, new_key

_FEW_CHARS = 20


@click.group("keys")
def keys_command() -> None:
    """Make API keys and hashes of them for a keys file."""


@keys_command.command("hash")
def hash_command() -> None:
    """Print the hash of a key, which is asked for, or read from a pipe."""
    key = _read_key()
    if not key:
        raise click.UsageError("The key is empty.")
    if len(key) < _FEW_CHARS:
        click.echo(
            "tidegate: so short a key can be guessed from its hash; 'tidegate keys new' makes a safe one.",
            err=True,
        )
    click.echo(hash_key(key))


@keys_command.command("new")
def new_command() -> None:
    """Print a new random key, and its hash. The key is shown once and kept nowhere."""
    key = new_key()
    click.echo(f"key  {key}")
    click.echo(f"hash {hash_key(key)}")


def _read_key() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Key", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
