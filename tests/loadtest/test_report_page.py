"""The page: whole in one file, honest before it is pretty."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from msgspec import structs

from loadtest.report.page import html_page, write_html
from loadtest.report.plots import Picture
from loadtest.report.style import PALETTE
from tests.support.load_reports import Setting, compare_report, run_report, sweep_report

SMALL = Setting(num_requests=30)


def test_a_server_that_tells_no_version_has_none() -> None:
    run = run_report(SMALL)
    page = html_page(structs.replace(run, server=structs.replace(run.server, kind="unknown", version="")))
    assert "(unknown)" in page


class Reader(HTMLParser):
    """Text as a reader meets it, tags still open, and all that is addressed or named."""

    VOID = {"meta", "br", "link", "img"}  # noqa: RUF012

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                self.addresses.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    @property
    def seen(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def page() -> str:
    return html_page(run_report(SMALL, failing=0.2, repeats=2, lag_ms=8.0))


def test_it_is_whole_and_asks_nobody_for_anything(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    assert all(address.startswith("#") for address in reader.addresses)
    assert not re.search(r"<script|@import|url\((?!#)|javascript:", page)


def test_names_within_it_are_each_given_once_and_all_that_is_referred_to_is_there(page: str) -> None:
    reader = Reader(page)
    assert len(set(reader.ids)) == len(reader.ids)
    referred = set(re.findall(r"url\(#([^)]+)\)", page)) | {address[1:] for address in reader.addresses}
    assert referred <= set(reader.ids)


def test_what_is_wrong_stands_before_the_first_figure(page: str) -> None:
    seen = Reader(page).seen
    fault = "Sends were late by 23 ms at p99"
    assert (
        seen.index("not to be trusted")
        < seen.index(fault)
        < seen.index("requests failed")
        < seen.index("p50")
    )


def test_failures_stand_there_by_reason(page: str) -> None:
    report = run_report(SMALL, failing=0.2, repeats=2, lag_ms=8.0)
    for reason, count in report.summary.failures.items():
        assert f"{reason} {count} " in Reader(page).seen


def test_all_that_is_needed_to_do_it_again_is_there(page: str) -> None:
    report = run_report(SMALL, failing=0.2, repeats=2, lag_ms=8.0)
    seen = Reader(page).seen
    assert "tideload run --rate 4.0 --seed 7" in seen
    assert all(f"{name} {value}" in seen for name, value in report.workload.items())
    assert all(repeat.salt in seen for repeat in report.repeats)


def test_pictures_follow_light_and_dark(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 6  # three, each for a desk and for a phone
    for drawing in drawings:
        assert "var(--ink" in drawing
        assert re.findall(r"#[0-9a-f]{6}\b", drawing) == []


def test_every_colour_that_is_used_has_a_light_and_a_dark_value(page: str) -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", page)) - {"sans", "mono"}
    assert used <= set(PALETTE)


def test_every_picture_says_in_words_what_it_shows(page: str) -> None:
    labels = re.findall(r'role="img" aria-label="([^"]+)"', page)
    assert len(labels) == 6
    assert any("p50" in label for label in labels)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are blank: they take time, and are tested elsewhere."""
    monkeypatch.setattr(Picture, "drawn", lambda self, sheet: Figure())


@pytest.mark.usefixtures("undrawn")
def test_what_a_server_says_stays_text() -> None:
    report = run_report(SMALL, failing=0.2)
    odd = "<script>alert(1)</script>"
    report = structs.replace(
        report,
        label=odd,
        server=structs.replace(report.server, model=odd, version=odd),
        summary=structs.replace(report.summary, failures={odd: 3}),
        repeats=[],
    )
    page = html_page(report)
    assert "<script" not in page
    assert Reader(page).seen.count(odd) >= 4


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_went_well_says_so_and_one_of_nothing_is_a_page_too(tmp_path: Path) -> None:
    write_html(structs.replace(run_report(SMALL), repeats=[]), tmp_path / "report.html")
    assert "The tool kept its schedule" in (tmp_path / "report.html").read_text()
    assert "No request completed" in html_page(
        structs.replace(run_report(SMALL, failing=1.0, slo=False), repeats=[])
    )


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_has_its_verdict_and_all_points() -> None:
    sweep = sweep_report(SMALL, rates=(1, 4))
    seen = Reader(html_page(structs.replace(sweep, highest_within_slo=4.0, lowest_beyond_slo=None))).seen
    assert "up to 4 requests/s; the limit lies above that" in seen
    assert "At 4 requests/s" in seen


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_has_its_verdict_and_both_settings() -> None:
    report = compare_report(Setting(num_requests=20))
    report = structs.replace(report, b=structs.replace(report.b, label="the other one"))
    seen = Reader(html_page(report)).seen
    assert report.verdict in seen and "the other one" in seen
    assert all(ratio.verdict in seen for ratio in report.ratios)
