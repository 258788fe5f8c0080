"""The tide map in a browser: cells by tier, seen to move, only while somebody looks."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from engine.stats import SessionKv
from tests.gateway.house import until
from tests.web.chat import Chat
from tests.web.conftest import OpenPage
from tests.web.house_thread import HouseThread


def place(house: HouseThread, cells: str) -> None:
    """Where the blocks of the session that was used last are from now on."""
    use = house.house.gateway.tide.register.recent("")[0]
    house.house.engine.sessions[use.name] = SessionKv(use.name, 16 * len(cells), cells)


def kinds(row: Locator) -> list[str]:
    found: list[str] = row.locator(".cell").evaluate_all("(cells) => cells.map((cell) => cell.dataset.kind)")
    return found


def test_blocks_are_seen_to_sink_and_rise(open_page: OpenPage, house: HouseThread) -> None:
    chat = Chat(open_page(house.house.url)).connected()
    chat.ask("A long story about the sea, please, with ships in it")
    page = chat.page
    row = page.locator(".session").first
    expect(row.locator(".session-name")).to_have_text("A long story about the sea, please, with ships in it")
    assert set(kinds(row)) == {"cached"}
    place(house, "DDDD")
    expect(row.locator(".session-told")).to_have_text("4 device, in use")
    before = row.locator(".cell").first.bounding_box()
    place(house, "h>dD")
    expect(row.locator(".session-told")).to_have_text(
        "1 device, in use · 1 device, cached · 1 moving down · 1 host memory"
    )
    assert kinds(row) == ["host", "down", "cached", "use"]
    page.wait_for_function(
        "() => document.getAnimations().every((a) => a.effect.getComputedTiming().iterations > 1)"
    )
    after = row.locator(".cell").first.bounding_box()
    assert before is not None and after is not None
    assert after["y"] > before["y"] and after["x"] == before["x"]
    place(house, "k<d-")
    expect(row.locator(".session-told")).to_contain_text("1 gone")
    assert kinds(row) == ["disk", "up", "cached", "gone"]
    place(
        house, "d" * 100 + "h" * 300 + "k" * 600
    )  # more than there is room for: told in full, drawn in part
    expect(row.locator(".session-told")).to_have_text("100 device, cached · 300 host memory · 600 disk")
    shown = kinds(row)
    assert len(shown) <= 64
    assert shown.count("disk") > shown.count("host") > shown.count("cached") > 0


def test_figures_move_while_an_answer_comes_and_a_row_opens_its_chat(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat = Chat(open_page(house.house.url)).connected()
    house.say_without_end("tide ")
    chat.send("Go on")
    page = chat.page
    page.wait_for_function(
        "() => parseFloat(document.querySelector('[data-figure=pace] dd').textContent) > 0"
    )
    expect(page.locator('[data-figure="queue"] dd')).to_have_text("1, 0")
    expect(page.locator('[data-figure="ttft"] dd')).not_to_have_text("–")
    expect(page.locator(".gauge").first).to_contain_text("of 1,024")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator('[data-figure="queue"] dd')).to_have_text("0, 0")
    page.get_by_role("button", name="New chat").click()
    expect(chat.turns).to_have_count(0)
    page.locator(".session").get_by_role("button", name="Go on").click()
    expect(chat.turns).to_have_count(1)


def test_the_server_is_asked_only_while_the_map_is_seen(open_page: OpenPage, house: HouseThread) -> None:
    chat = Chat(open_page(house.house.url)).connected()
    tide = house.house.gateway.tide
    expect(chat.page.locator("#feed")).to_have_text("Live")
    house.call(until(lambda: tide.num_watchers == 1))
    toggle = chat.page.get_by_role("button", name="Tide map", exact=True)
    toggle.click()
    expect(toggle).to_have_attribute("aria-expanded", "false")
    house.call(until(lambda: tide.num_watchers == 0))
    chat.page.reload()
    chat.connected()
    expect(toggle).to_have_attribute("aria-expanded", "false")  # that is remembered
    toggle.click()
    house.call(until(lambda: tide.num_watchers == 1))
