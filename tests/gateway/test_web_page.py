"""The chat page's files: what is served and how, and that the page needs nothing from anywhere else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.web_page import load_web_files
from tests.gateway.house import House

Make = Callable[..., Any]
WEB = Path(__file__).parents[2] / "gateway" / "web"
FILES = load_web_files()
OURS = [path for path in FILES if not path.startswith("vendor/")]


async def test_the_page_is_at_the_root_with_a_policy_that_allows_no_inline_code(make_house: Make) -> None:
    house: House = await make_house(api_keys=("key",))  # the page itself needs none
    reply = await house.request("GET", "/")
    assert (reply.status, reply.body) == (200, FILES["index.html"].body)
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "*" not in policy and "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["referrer-policy"] == "no-referrer"


async def test_every_file_has_its_type_and_is_sent_once(make_house: Make) -> None:
    house: House = await make_house()
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "html": "text/html"}
    for path, file in FILES.items():
        reply = await house.request("GET", f"/web/{path}")
        assert (reply.status, reply.body) == (200, file.body)
        assert reply.headers["content-type"].startswith(kinds[path.rpartition(".")[2]])
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-cache"
        tag = reply.headers["etag"]
        again = await house.request("GET", f"/web/{path}", headers={"If-None-Match": tag})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        other = await house.request("GET", f"/web/{path}", headers={"If-None-Match": '"other"'})
        assert other.status == 200


async def test_nothing_else_is_served(make_house: Make) -> None:
    house: House = await make_house()
    for path in (
        "/web/", "/web/none.js", "/web/../web_page.py", "/web/%2e%2e/web_page.py", "/web/..%2fweb_page.py",
        "/web//etc/passwd", "/web/vendor/marked/LICENSE", "/web/vendor", "/index.html",
    ):  # fmt: skip
        reply = await house.request("GET", path)
        assert (reply.status, reply.error["code"]) == (404, "not_found"), path


async def test_it_can_be_switched_off(make_house: Make) -> None:
    house: House = await make_house(web=False)
    for path in ("/", "/web/app.js", "/v1/tide"):
        assert (await house.request("GET", path)).status == 404
    paths = (await house.request("GET", "/openapi.json")).json["paths"]
    assert not {"/", "/web/{file}", "/v1/tide"} & set(paths)


@pytest.mark.parametrize("path", OURS)
def test_no_file_of_ours_reaches_out_or_makes_html_of_text(path: str) -> None:
    text = (WEB / path).read_text()
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert danger not in text
    if path.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", text)


def test_whatever_the_files_name_is_there() -> None:
    named = set()
    for path in OURS:
        named |= set(re.findall(r"[\"'(]/web/([\w./-]+)[\"')]", (WEB / path).read_text()))
    assert named
    assert named <= set(FILES)


def test_every_drawing_that_is_used_is_drawn() -> None:
    page = (WEB / "index.html").read_text()
    drawn = set(re.findall(r'<symbol id="i-([\w-]+)"', page))
    used = set(re.findall(r'href="#i-([\w-]+)"', page))
    for path in OURS:
        used |= set(re.findall(r"icon(?:Button)?\(\"([\w-]+)\"", (WEB / path).read_text()))
    assert used <= drawn


def test_what_is_vendored_has_its_licence_and_version_told() -> None:
    told = (WEB / "vendor" / "README.md").read_text()
    for folder in (path for path in (WEB / "vendor").iterdir() if path.is_dir()):
        assert (folder / "LICENSE").exists()
        version = re.search(rf"\| {folder.name} \| ([\d.]+) \|", told)
        assert version is not None
        assert any(f"v{version[1]}" in path.read_text()[:300] for path in folder.glob("*.js"))
