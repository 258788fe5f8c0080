"""What the tests do to the chat page, and what they read off it, as its user would."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Locator, Page, WebSocketRoute, expect


class Chat:
    """One open page. ``sent`` are the events that it sent, if ``listen`` was called before it was loaded."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def turns(self) -> Locator:
        return self.page.locator("#turns > .turn")

    @property
    def answers(self) -> Locator:
        return self.page.get_by_role("article", name="Answer")

    def connected(self) -> Chat:
        expect(self.page.locator("#link")).to_have_text("Connected")
        return self

    def send(self, text: str) -> None:
        self.box.fill(text)
        self.box.press("Enter")

    def ask(self, text: str) -> str:
        """Send, wait for the end, and return the answer."""
        count = self.turns.count()
        self.send(text)
        expect(self.turns).to_have_count(count + 1)
        return self.wait_ended()

    def wait_ended(self, status: str = "done") -> str:
        """Of the last turn."""
        expect(self.turns.last).to_have_attribute("data-status", status)
        return self.text()

    def wait_for_text(self, length: int = 1) -> str:
        """Until the last answer has so much of it."""
        self.page.wait_for_function(
            "(length) => (document.querySelector('#turns > .turn:last-child .prose')?.textContent ?? '')"
            ".length >= length",
            arg=length,
        )
        return self.text()

    def text(self) -> str:
        """Of the last answer, as far as it is there."""
        return self.answers.last.locator(".prose").text_content() or ""

    def kept(self) -> list[dict[str, Any]]:
        """The chats that the browser keeps."""
        found: list[dict[str, Any]] = self.page.evaluate(
            "Object.keys(localStorage).filter((name) => name.startsWith('tidegate.chat.'))"
            ".map((name) => JSON.parse(localStorage[name]))"
        )
        return found

    def focused(self) -> str:
        """The accessible name, roughly, of what has the focus."""
        name: str = self.page.evaluate(
            "(() => { const e = document.activeElement; return e.getAttribute('aria-label') || e.labels?.[0]"
            "?.textContent || e.textContent.trim() || e.id; })()"
        )
        return name


class Wire:
    """The page's WebSockets, seen and cut on their way. ``cuts``: after how many events, of each one."""

    def __init__(self, page_or_context: Any, cuts: list[int] | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.urls: list[str] = []
        self._cuts = list(cuts or ())
        self.is_down = False
        page_or_context.route_web_socket("**/v1/responses*", self._connect)

    @property
    def creates(self) -> list[dict[str, Any]]:
        return [event for event in self.sent if event["type"] == "response.create"]

    def _connect(self, page_side: WebSocketRoute) -> None:
        self.urls.append(page_side.url)
        if self.is_down:
            page_side.close(code=4000)
            return
        server_side = page_side.connect_to_server()
        left = self._cuts.pop(0) if self._cuts else None
        count = 0

        def from_page(message: Any) -> None:
            self.sent.append(json.loads(message))
            if left == 0:
                page_side.close(code=4000)
            else:
                server_side.send(message)

        def from_server(message: Any) -> None:
            nonlocal count
            if left is not None and count >= left:
                return
            self.received.append(json.loads(message))
            page_side.send(message)
            count += 1
            if count == left:
                page_side.close(code=4000)
                server_side.close(code=4000)

        page_side.on_message(from_page)
        server_side.on_message(from_server)
