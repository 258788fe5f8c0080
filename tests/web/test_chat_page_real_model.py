"""The chat page over a real server and the real model: its text is the server's, its map the engine's.

Pictures of the page are taken on the way. `make screenshots` names the folder that the README shows, and has
longer answers in them; else they go where they are thrown away.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.kv_room import kv_mib
from tests.support.server import Server, running_server
from tests.web.chat import Chat
from tests.web.conftest import OpenPage

pytestmark = pytest.mark.timeout(300)
SLOW_MS = 60_000
SCREENSHOTS = os.environ.get("TIDEGATE_SCREENSHOTS")
SETTINGS = {"temperature": 0, "maxTokens": 200 if SCREENSHOTS else 48}
QUESTIONS = (
    "How do the moon and the sun make the tides? Answer in two short paragraphs.",
    "Describe the harbour of a small fishing town early in the morning, in winter.",
    "What should I pack for a week of sailing in the north of Scotland? Make a list.",
    "Show me a Python function that reverses a list.",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its device and host each hold little more than one chat at its longest."""
    disk = tmp_path_factory.mktemp("disk")
    size, window = (11, "448") if SCREENSHOTS else (6, "256")
    tiers = ("--device-kv", kv_mib(size), "--host-kv", kv_mib(5), "--disk-kv", f"{disk}:{kv_mib(64)}")
    with running_server(*tiers, "--max-model-len", window, "--block-size", "16") as server:
        yield server
        report = server.wait_idle()
        assert report["problems"] == []
        assert "Traceback" not in server.log
        assert server.stop() == 0, server.log


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(SCREENSHOTS) if SCREENSHOTS else tmp_path_factory.mktemp("pictures")


def open_chat(open_page: OpenPage, server: Server, **options: Any) -> Chat:
    page = open_page("about:blank", **options)
    page.context.add_init_script(
        f"if (location.protocol !== 'about:' && !localStorage.getItem('tidegate.settings'))"
        f" localStorage.setItem('tidegate.settings', '{json.dumps({**SETTINGS, 'tide': True})}')"
    )
    page.goto(server.url)
    return Chat(page).connected()


def wait_ended(chat: Chat) -> str:
    expect(chat.turns.last).to_have_attribute("data-status", re.compile("done|cut"), timeout=SLOW_MS)
    return chat.text()


def stored(server: Server, turn: dict[str, Any]) -> str:
    status, body = server.get(f"/v1/responses/{turn['responseId']}")
    assert status == 200, body
    return "".join(part["text"] for item in json.loads(body)["output"] for part in item["content"])


def take(page: Page, path: Path) -> None:
    """A picture of the page at rest."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(1200 if SCREENSHOTS else 0)
    page.screenshot(path=path)


def test_what_is_shown_is_what_the_server_has(open_page: OpenPage, server: Server) -> None:
    chat = open_chat(open_page, server)
    chat.send(QUESTIONS[0])
    chat.wait_for_text(20)
    chat.page.reload()  # in mid-stream
    wait_ended(chat)
    chat.send("Now write a very long story about it, with ten chapters, and tell every detail.")
    chat.wait_for_text(10)
    chat.page.get_by_role("button", name="Stop").click()
    chat.wait_ended("stopped")
    chat.page.keyboard.press("ArrowUp")
    chat.page.keyboard.press("Control+A")
    chat.page.keyboard.type("And what is a spring tide?")
    chat.page.keyboard.press("Enter")
    expect(chat.turns.last).to_contain_text("2 / 2")
    wait_ended(chat)
    first, stopped, fork = chat.kept()[0]["turns"]
    for turn in (first, fork):
        assert stored(server, turn).strip() == turn["answer"].strip() != ""
    assert stored(server, stopped) == ""  # what was stopped does not count for the server
    assert (
        fork["usage"]["input_tokens_details"]["cached_tokens"] > 0
    )  # it shares the blocks of what was before


def test_blocks_go_down_as_others_come_and_rise_again(
    open_page: OpenPage, server: Server, pictures: Path
) -> None:
    chat = open_chat(open_page, server)
    page = chat.page
    for number, question in enumerate(QUESTIONS):
        if number:
            page.get_by_role("button", name="New chat").click()
        chat.send(question)
        expect(chat.turns).to_have_count(1)
        if number == 2:
            chat.wait_for_text(100)
            page.screenshot(path=pictures / "chat-answering.png")
        wait_ended(chat)
    oldest = page.locator(".session").filter(has_text="How do the moon")
    expect(oldest.locator(".session-told")).to_contain_text(re.compile("host memory|disk"))
    take(page, pictures / "chat-light.png")
    page.get_by_role("button", name="Dark theme").click()
    take(page, pictures / "chat-dark.png")
    down = oldest.locator(".session-told").inner_text()
    oldest.get_by_role("button").click()
    chat.send("Thank you. Which of the two is stronger?")
    expect(page.locator(".session").first).to_contain_text("How do the moon")
    expect(page.locator(".session").first.locator(".session-told")).not_to_have_text(down)
    wait_ended(chat)
    expect(page.locator(".session").first.locator(".session-told")).not_to_contain_text("disk")
    hits = page.locator('[data-figure="hits"] dd').inner_text()
    found = {tier: int(count.replace(",", "")) for tier, count in re.findall(r"(host|disk) ([\d,]+)", hits)}
    assert sum(found.values()) > 0, hits


def test_pictures_of_a_phone_are_taken(open_page: OpenPage, server: Server, pictures: Path) -> None:
    phone = {"viewport": {"width": 390, "height": 780}, "is_mobile": True, "has_touch": True}
    chat = open_chat(open_page, server, device_scale_factor=2, **phone)
    chat.send("Name three seas, as a list.")
    wait_ended(chat)
    take(chat.page, pictures / "phone-chat.png")
    chat.page.get_by_role("button", name="Tide map", exact=True).tap()
    expect(chat.page.locator(".session-name").first).to_have_text("Name three seas, as a list.")
    take(chat.page, pictures / "phone-tide.png")
    assert {path.stat().st_size > 10_000 for path in pictures.glob("*.png")} == {True}
