"""The load test's page, in Chromium: readable in light and dark, at a desk and on a phone, by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from loadtest.report.page import html_page
from tests.support.load_reports import Setting, run_report

CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
SCREENSHOTS = os.environ.get("TIDEGATE_SCREENSHOTS")
DESK = {"width": 1280, "height": 1180}
PHONE = {"width": 390, "height": 844}
LEAST_TEXT_PX = 9.5
SIZES_IN_DRAWINGS = """() => [...document.querySelectorAll("figure svg text")].filter(
  (text) => text.checkVisibility()).map(
  (text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""
SHOWN = """() => [...document.querySelectorAll("figure")].map(
  (figure) => [...figure.querySelectorAll("svg")].filter((drawing) => drawing.checkVisibility()).length)"""


@pytest.fixture(scope="module")
def page_text() -> str:
    return html_page(run_report(Setting(num_requests=40), failing=0.2, repeats=2, lag_ms=8.0))


@pytest.mark.parametrize(
    ("scheme", "viewport"), [("light", DESK), ("dark", PHONE)], ids=["light at a desk", "dark on a phone"]
)
def test_the_page_can_be_read(
    browser: Browser, page_text: str, scheme: str, viewport: dict[str, int]
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport=viewport)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        troubles: list[str] = []
        page.on("request", lambda request: troubles.append(request.url))
        page.on("console", lambda message: troubles.append(message.text))
        page.set_content(page_text)
        if SCREENSHOTS:
            page.screenshot(path=f"{SCREENSHOTS}/load-page-{scheme}.png")
        assert troubles == []
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert page.evaluate(SHOWN) == [1, 1, 1]
        assert min(page.evaluate(SIZES_IN_DRAWINGS)) >= LEAST_TEXT_PX
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(243, 246, 248)", "dark": "rgb(12, 19, 23)"}[scheme]
    finally:
        context.close()
