"""The key: asked for when the server needs one, kept where the user said, and never in an address."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.web.chat import Chat, Wire
from tests.web.conftest import OpenPage
from tests.web.house_thread import HouseThread

KEY = "sk-very-secret"


def test_a_key_is_asked_for_once_and_never_shows_in_an_address(
    open_page: OpenPage, make_house: Callable[..., HouseThread]
) -> None:
    house = make_house(api_keys=(KEY, "another"))
    page = open_page("about:blank")
    wire = Wire(page)
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(house.house.url)
    dialog = page.get_by_role("dialog", name="This server needs a key")
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    field.fill("wrong")
    field.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("The server does not know this key.")
    field.fill(KEY)
    field.press("Enter")
    chat = Chat(page).connected()
    house.say("Welcome.")
    assert chat.ask("Hello") == "Welcome."
    expect(page.locator("#feed")).to_have_text("Live")
    expect(page.locator(".session-name").first).to_have_text("Hello")
    expect(page.locator('[data-figure="queue"]')).to_contain_text("of yours")  # others share the house
    page.reload()
    chat.connected()
    assert len({url.partition("ticket=")[2] for url in wire.urls}) == len(wire.urls) == 2
    assert not any(KEY in url for url in (*addresses, *wire.urls))
    assert page.evaluate(f"Object.values(localStorage).some((value) => value.includes('{KEY}'))") is False
    other = page.context.new_page()
    other.goto(house.house.url)  # another tab: the key was for that one only
    expect(other.get_by_role("dialog", name="This server needs a key")).to_be_visible()


def test_a_key_can_have_any_characters(open_page: OpenPage, make_house: Callable[..., HouseThread]) -> None:
    house = make_house(api_keys=("clé 🔑",))
    page = open_page(house.house.url)
    field = page.get_by_label("API key")
    for key in ("wrong 🔑", "clé 🔐"):
        field.fill(key)
        field.press("Enter")
        expect(page.locator("#key-error")).to_have_text("The server does not know this key.")
    field.fill("clé 🔑")
    field.press("Enter")
    Chat(page).connected()


def test_a_key_can_be_remembered_and_forgotten(
    open_page: OpenPage, make_house: Callable[..., HouseThread]
) -> None:
    house = make_house(api_keys=(KEY,))
    page = open_page(house.house.url)
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("Remember it after this tab is closed").check()
    page.get_by_role("button", name="Connect").click()
    Chat(page).connected()
    other = page.context.new_page()
    other.goto(house.house.url)
    Chat(other).connected()
    other.get_by_role("button", name="Settings").click()
    other.get_by_role("button", name="Forget it").click()
    expect(other.get_by_role("dialog", name="This server needs a key")).to_be_visible()
    assert other.evaluate("localStorage.getItem('tidegate.key')") is None


def test_a_server_that_stops_and_comes_back_is_found_again(
    open_page: OpenPage, make_house: Callable[..., HouseThread]
) -> None:
    house = make_house(step_s=0.005)
    page = open_page("about:blank")
    wire = Wire(page, [4])
    page.goto(house.house.url)
    chat = Chat(page).connected()
    wire.is_down = True
    house.say("Back again.")
    chat.send("Hello")  # the line breaks at the fourth event
    expect(page.locator("#link")).to_have_text("Reconnecting")
    while len(wire.urls) < 2:  # it tries
        page.wait_for_timeout(50)
    wire.is_down = False
    assert chat.wait_ended() == "Back again."
    assert len(wire.creates) == 1
