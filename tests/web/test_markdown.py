"""Text of the model in a browser: markdown becomes elements, and nothing else becomes anything."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.web.chat import Chat
from tests.web.conftest import OpenPage
from tests.web.house_thread import HouseThread

ALLOWED = {
    "A", "ARTICLE", "BLOCKQUOTE", "BR", "BUTTON", "CODE", "DEL", "DETAILS", "DIV", "EM", "H3", "H4", "H5",
    "H6", "HR", "I", "INPUT", "LI", "OL", "P", "PRE", "SPAN", "STRONG", "SUMMARY", "TABLE", "TBODY", "TD",
    "TH", "THEAD", "TR", "UL", "svg", "use",
}  # fmt: skip
RICH = """# Tides

A *gentle* and **strong** pull, ~~not wind~~, with `code` & more &amp; [a link](https://example.org/a?b=1&c=2).

- one
  - inner
- [x] done

| tier | size |
|:-----|-----:|
| disk | 10 |

> Quoted

```python
print("<b>hi</b>")
```
"""
HOSTILE = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload=window.pwned=1><animate onbegin=window.pwned=1>",
    "[click](javascript:window.pwned=1)",
    "[click](JaVaScRiPt&colon;window.pwned=1)",
    "[click](&#106;avascript:window.pwned=1)",
    "[click](data:text/html,<script>window.pwned=1</script>)",
    "![picture](http://evil.example/x.png)",
    "![](javascript:window.pwned=1)",
    "<a href='javascript:window.pwned=1'>click</a>",
    "<iframe src='http://evil.example/'></iframe>",
    "<style>body { display: none }</style>",
    "<form action='http://evil.example/'><input name=key><button>Go</button></form>",
    "<javascript:window.pwned=1>",
    "[ref]: javascript:window.pwned=1\n\n[ref]",
    '```"><script>window.pwned=1</script>\ncode\n```',
    "[x](https://example.org/\"onmouseover='window.pwned=1')",
    "<div id=composer><math><mtext></p><img src=x onerror=window.pwned=1></math></div>",
    "> " * 60 + "deep",
    "[" * 200 + "wide" + "](x)" * 200,
]


def test_markdown_becomes_elements_and_can_be_copied(open_page: OpenPage, house: HouseThread) -> None:
    chat = Chat(open_page(house.house.url)).connected()
    house.say(RICH)
    chat.ask("Show me")
    page = chat.page
    prose = page.locator(".prose")
    expect(prose.get_by_role("heading", level=3, name="Tides")).to_be_visible()
    expect(prose.locator("em")).to_have_text("gentle")
    expect(prose.locator("strong")).to_have_text("strong")
    expect(prose.locator("del")).to_have_text("not wind")
    expect(prose.locator("p").first).to_contain_text("code & more & a link")
    link = prose.get_by_role("link", name="a link")
    expect(link).to_have_attribute("href", "https://example.org/a?b=1&c=2")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(prose.locator("ul ul li")).to_have_text("inner")
    expect(prose.get_by_role("checkbox")).to_be_checked()
    expect(prose.get_by_role("columnheader", name="size")).to_have_class("to-right")
    expect(prose.locator("blockquote")).to_have_text("Quoted")
    expect(prose.locator("pre code")).to_have_text('print("<b>hi</b>")')
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".code").get_by_role("button", name="Copy").click()
    expect(page.locator(".code").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<b>hi</b>")'
    page.locator(".answer > .under").get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == RICH


def test_hostile_text_stays_text(open_page: OpenPage, house: HouseThread) -> None:
    """The fixture holds that nothing was fetched from elsewhere, and the policy had nothing to refuse."""
    chat = Chat(open_page(house.house.url)).connected()
    house.say("\n\n".join(HOSTILE))
    chat.ask("<img src=x onerror='window.pwned = 1'><script>window.pwned = 1</script>")
    page = chat.page
    for link in page.locator(".prose a").all():
        assert (link.get_attribute("href") or "").startswith(("https://example.org/", "http://evil.example/"))
    page.wait_for_timeout(100)
    assert page.evaluate("window.pwned") is None
    found = set(page.evaluate("[...document.querySelectorAll('.turns *')].map((e) => e.tagName)"))
    assert found <= ALLOWED
    handlers = page.evaluate(
        "[...document.querySelectorAll('.turns *')].flatMap((e) => e.getAttributeNames())"
        ".filter((name) => name.startsWith('on') || ['src', 'srcdoc', 'style', 'action'].includes(name))"
    )
    assert [name for name in handlers if name != "style"] == []
    assert page.locator("#composer").count() == 1  # no id of ours was taken
    title = page.locator("#chat-list .open-chat")
    expect(title).to_have_attribute("title", "<img src=x onerror='window.pwned = 1'><script>window.pwned …")
    for shown in ("<script>window.pwned = 1</script>", "<iframe src='http://evil.example/'></iframe>"):
        expect(page.locator(".prose")).to_contain_text(shown)


def test_blocks_that_are_done_keep_their_elements(open_page: OpenPage, house: HouseThread) -> None:
    """What was selected in them stays so, and a long answer costs no more per token than a short one."""
    chat = Chat(open_page(house.house.url)).connected()
    house.say("First paragraph.\n\n" + "and more " * 100)
    chat.send("Go on")
    chat.wait_for_text(40)
    first = chat.page.locator(".prose > p").first.element_handle()
    chat.page.evaluate("(element) => (element.mark = 1)", first)
    chat.wait_ended()
    assert chat.page.evaluate("document.querySelector('.prose > p').mark") == 1
