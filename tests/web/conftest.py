"""A browser for the tests of the chat page: one for all of them, with a fresh profile for each test.

Where Chromium is missing they are skipped, and say so; where TIDEGATE_CI or CI is set they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.tiny_tokenizers import byte_level, save
from tests.web.house_thread import HouseThread, house_thread

IN_CI = bool(os.environ.get("TIDEGATE_CI") or os.environ.get("CI"))
TIMEOUT_MS = 15_000
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
DESKTOP = {"width": 1440, "height": 900}
WINDOW = {"max_model_len": 8192, "num_blocks": 1024}


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if IN_CI:
            pytest.fail("Chromium is not installed; the tests of the chat page need it")
        pytest.skip("NOT RUN: the tests of the chat page; install Chromium (apt-get install chromium)")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, make_house: Callable[..., HouseThread]) -> Iterator[OpenPage]:
    """Opens pages, each in a profile of its own; they are closed before houses are.

    At the end none of them must have had an error.
    """
    contexts = []
    troubles: list[str] = []

    def open_page(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: _note_foreign(troubles, request.url))
        page.on("console", lambda message: _note_console(troubles, message))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _note_foreign(troubles: list[str], url: str) -> None:
    if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:")):
        troubles.append(f"asked for {url}")


def _note_console(troubles: list[str], message: Any) -> None:
    """What the policy refused shows here; failed requests are the tests' own doing."""
    own = ("Failed to load resource", "WebSocket")
    if message.type == "error" and not any(words in message.text for words in own):
        troubles.append(message.text)


@pytest.fixture(scope="package")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(byte_level(), tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="package")
def shared_house(tokenizer_dir: str) -> Iterator[HouseThread]:
    with house_thread(tokenizer_dir, info=WINDOW, step_s=0.004, tide_interval_s=0.05) as thread:
        yield thread


@pytest.fixture
def house(shared_house: HouseThread) -> Iterator[HouseThread]:
    """One for all tests, without scripts of the last one."""
    shared_house.run(shared_house.house.scripts.clear)
    shared_house.house.engine.record.submitted.clear()
    shared_house.house.engine.record.forgotten.clear()
    yield shared_house
    shared_house.call(shared_house.house.idle())


@pytest.fixture
def make_house(tokenizer_dir: str) -> Iterator[Callable[..., HouseThread]]:
    """For tests that need one of their own."""
    made: list[HouseThread] = []

    def make(**options: Any) -> HouseThread:
        thread = HouseThread(tokenizer_dir, **{"info": WINDOW, "tide_interval_s": 0.05, **options})
        made.append(thread)
        return thread

    yield make
    for thread in made:
        thread.close()
