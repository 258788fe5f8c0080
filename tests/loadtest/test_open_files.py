"""The limit of open files, as this process has it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from loadtest.drivers.open_files import OpenFilesError, allow_connections


@pytest.fixture
def limit() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_need_be(limit: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit[1]))
    allow_connections(90)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
    allow_connections(300)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 600


def test_where_there_are_not_two_for_each_request_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    allow_connections(600)
    assert asked == [(1000, 1000)]


def test_what_the_system_does_not_let_it_have_is_said_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1000))
    with pytest.raises(OpenFilesError, match="at most 936 at a time"):
        allow_connections(2000)
