"""The page by keyboard, by screen reader, on a phone, in the dark: what tools such as axe check, by hand."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.web.chat import Chat
from tests.web.conftest import OpenPage
from tests.web.house_thread import HouseThread
from tests.web.test_markdown import RICH

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
MIN_TARGET_PX = 24  # WCAG 2.2, 2.5.8
NAMELESS = """() => [...document.querySelectorAll(
    "button, a[href], input, select, textarea, summary, dialog, nav, aside, [role=region], [tabindex='0']")]
  .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim()
    || document.getElementById(e.getAttribute("aria-labelledby"))))
  .map((e) => e.outerHTML)"""
SMALL = """(least) => [...document.querySelectorAll("button, input, select, textarea, summary")]
  .filter((e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
  .filter((e) => !e.closest(".unseen, .prose"))
  .map((e) => [e.getAttribute("aria-label") || e.textContent.trim(), e.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.width < least || box.height < least))
  .map(([name, box]) => [name, box.width, box.height])"""


def talk(open_page: OpenPage, house: HouseThread, **options: Any) -> Chat:
    """A page with all kinds of things on it."""
    chat = Chat(open_page(house.house.url, **options)).connected()
    house.say(RICH)
    chat.ask("Tell me of the tides")
    return chat


def test_it_can_be_used_by_keyboard_alone(open_page: OpenPage, house: HouseThread) -> None:
    chat = Chat(open_page(house.house.url)).connected()
    page, press = chat.page, chat.page.keyboard.press
    expect(chat.box).to_be_focused()
    house.say("First.")
    page.keyboard.type("One")
    press("Shift+Enter")
    page.keyboard.type("and two")
    press("Enter")
    assert chat.wait_ended() == "First."
    assert chat.kept()[0]["turns"][0]["text"] == "One\nand two"
    house.say("Second.")
    press("ArrowUp")  # the last message, to edit
    assert chat.focused() == "Edit your message"
    press("Escape")
    assert chat.focused() == "Edit this message and branch off"
    press("/")
    expect(chat.box).to_be_focused()
    press("ArrowUp")
    press("Control+A")
    page.keyboard.type("Three")
    press("Enter")
    expect(chat.answers.last.locator(".prose")).to_have_text("Second.")
    press("Control+Shift+KeyO")
    expect(chat.turns).to_have_count(0)
    expect(chat.box).to_be_focused()
    house.say_without_end("on ")
    page.keyboard.type("Never end")
    press("Enter")
    chat.wait_for_text(5)
    press("Escape")
    chat.wait_ended("stopped")
    expect(chat.box).to_be_focused()
    press("Alt+ArrowDown")
    expect(page.locator("#title")).to_have_text("One")
    press("Alt+ArrowUp")
    expect(page.locator("#title")).to_have_text("Never end")


def test_the_order_of_the_focus_is_that_of_the_page_and_dialogs_give_it_back(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat = talk(open_page, house)
    page = chat.page
    page.reload()
    chat.connected()
    page.evaluate("() => { document.activeElement.blur(); document.querySelector('.skip').focus(); }")
    order = [chat.focused()]
    for _ in range(9):
        page.keyboard.press("Tab")
        order.append(chat.focused())
    assert order == [
        "Skip to the message box", "New chat", "Tell me of the tides", "Delete Tell me of the tides",
        "Settings", "Shortcuts", "Dark theme", "Tide map", "Conversation", "Edit this message and branch off",
    ]  # fmt: skip
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert chat.focused() == order[-1]
    page.get_by_role("link", name="Skip to the message box").focus()
    page.keyboard.press("Enter")
    expect(chat.box).to_be_focused()


def test_a_screen_reader_finds_names_landmarks_and_what_is_new(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat = talk(open_page, house)
    page = chat.page
    assert page.evaluate(NAMELESS) == []
    for role, name in (("navigation", "Chats"), ("complementary", "Tide map"), ("region", "Conversation")):
        expect(page.get_by_role(role, name=name)).to_have_count(1)  # type: ignore[arg-type]
    expect(page.get_by_role("main")).to_have_count(1)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    named = page.evaluate(
        "[...document.querySelectorAll('[aria-labelledby], [aria-describedby], [aria-controls], label[for]')]"
        ".flatMap((e) => ['aria-labelledby', 'aria-describedby', 'aria-controls', 'for']"
        ".map((n) => e.getAttribute(n)).filter(Boolean))"
    )
    assert set(named) <= set(ids)
    announcer = page.locator("#announcer")
    expect(announcer).to_have_attribute("aria-live", "polite")
    expect(announcer).to_contain_text("Tides")
    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter((e) => e.checkVisibility())"
        ".map((e) => Number(e.tagName[1]))"
    )
    assert levels[0] == 1 and max(b - a for a, b in pairwise(levels)) <= 1
    house.say_without_end("and on ")
    chat.send("More")
    chat.wait_for_text(20)
    expect(chat.answers.last).to_have_attribute("aria-busy", "true")
    expect(announcer).not_to_contain_text("and on")  # no word for each token
    page.get_by_role("button", name="Stop").click()
    expect(announcer).to_have_text("Answer stopped.")
    expect(chat.answers.last).to_have_attribute("aria-busy", "false")


def test_text_stands_out_from_its_ground_in_light_and_dark(open_page: OpenPage, house: HouseThread) -> None:
    chat = talk(open_page, house, color_scheme="light", reduced_motion="reduce")
    page = chat.page
    toggle = page.get_by_role("button", name="Dark theme")
    for scheme, color in (("light", "rgb(243, 246, 248)"), ("dark", "rgb(12, 19, 23)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert ground(page) == color  # by the system, until it is chosen
        expect(toggle).to_have_attribute("aria-pressed", str(scheme == "dark").lower())
        assert page.evaluate(CONTRAST) == []
        page.get_by_role("button", name="Settings").click()
        assert page.evaluate(CONTRAST) == []
        page.keyboard.press("Escape")
    toggle.click()
    assert ground(page) == "rgb(243, 246, 248)"
    page.reload()
    assert ground(page) == "rgb(243, 246, 248)"
    page.get_by_role("button", name="New chat").click()
    assert page.evaluate(CONTRAST) == []
    page.evaluate("() => { document.querySelector('.welcome p').style.color = '#777'; }")
    assert len(page.evaluate(CONTRAST)) == 1  # it can fail


def ground(page: Page) -> str:
    color: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return color


def test_it_can_be_used_on_a_phone(open_page: OpenPage, house: HouseThread) -> None:
    chat = talk(open_page, house, **PHONE)
    page = chat.page
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert page.evaluate(wide) is False
    expect(page.locator("#chats")).not_to_be_in_viewport()
    page.get_by_role("button", name="Chats", exact=True).tap()
    expect(page.locator("#chats")).to_be_in_viewport()
    assert page.evaluate(SMALL, MIN_TARGET_PX) == []
    page.get_by_role("button", name="New chat").tap()
    expect(page.locator("#chats")).not_to_be_in_viewport()
    house.say("Short.")
    assert chat.ask("On the phone") == "Short."
    page.get_by_role("button", name="Tide map", exact=True).tap()
    expect(page.locator("#tide")).to_be_in_viewport()
    expect(page.locator(".session-name").first).to_have_text("On the phone")
    assert page.evaluate(wide) is False
    page.get_by_role("button", name="Close the tide map").tap()
    expect(page.locator("#tide")).to_be_hidden()
    assert page.evaluate(SMALL, MIN_TARGET_PX) == []
    page.get_by_role("button", name="Edit this message and branch off").tap()
    expect(page.get_by_role("textbox", name="Edit your message")).to_be_focused()


def test_the_view_follows_the_text_until_the_reader_scrolls_away(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat = Chat(open_page(house.house.url, viewport={"width": 900, "height": 500})).connected()
    house.say_without_end("a long line of text that goes on\n\n")
    chat.send("Fill the page")
    page = chat.page
    at_end = "() => { const s = document.querySelector('#scroll');"
    at_end += " return s.scrollHeight - s.scrollTop - s.clientHeight < 80 && s.scrollTop > 200; }"
    page.wait_for_function(at_end)
    page.mouse.move(450, 200)
    page.mouse.wheel(0, -50_000)
    page.get_by_role("button", name="Scroll to the newest message").wait_for()
    page.wait_for_timeout(100)
    top = page.evaluate("() => document.querySelector('#scroll').scrollTop")
    chat.wait_for_text(len(chat.text()) + 300)
    assert page.evaluate("() => document.querySelector('#scroll').scrollTop") == top
    page.get_by_role("button", name="Scroll to the newest message").click()
    page.wait_for_function(at_end)
    page.get_by_role("button", name="Stop").click()
    assert re.match("a long line", chat.wait_ended("stopped"))
