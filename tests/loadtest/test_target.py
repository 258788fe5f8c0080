"""How the user names a server."""

from __future__ import annotations

import pytest

from loadtest.drivers.target import Target, TargetError


@pytest.mark.parametrize(
    ("base_url", "url", "authority"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("https://host/prefix/v1", "https://host/prefix", "host"),
        ("https://host:80", "https://host:80", "host:80"),
        ("http://[::1]:9", "http://[::1]:9", "[::1]:9"),
    ],
)
def test_the_url_is_taken_with_and_without_version(base_url: str, url: str, authority: str) -> None:
    address = Target(base_url).address
    assert (address.url, address.authority) == (url, authority)


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://h:x",
        "http://u:p@h",
        "http://h?a=b",
        "http://h/a b",
        "http://h/é",
    ],
)
def test_what_is_no_base_url_is_refused(base_url: str) -> None:
    with pytest.raises(TargetError):
        Target(base_url)


def test_only_responses_are_spoken_over_a_websocket() -> None:
    with pytest.raises(TargetError, match="Responses API"):
        Target("http://h", api="chat", transport="ws")


def test_a_header_cannot_bring_another_and_is_not_shown() -> None:
    with pytest.raises(TargetError):
        Target("http://h", headers={"a": "b\r\nc: d"})
    assert "secret" not in repr(Target("http://h", headers={"authorization": "Bearer secret"}))
