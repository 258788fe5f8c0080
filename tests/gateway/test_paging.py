"""Lists of items a page at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.openai.responses.shape import encode
from gateway.responses.paging import DEFAULT_PAGE, MAX_PAGE, PageQuery, page_of, page_query
from gateway.responses.records import ItemRecord


def query(text: str) -> PageQuery:
    return page_query(make_mocked_request("GET", f"/x?{text}"))


def items(count: int) -> list[ItemRecord]:
    return [ItemRecord(f"i{number}", b'{"id": "i%d"}' % number) for number in range(count)]


def told(found: list[ItemRecord], asked: PageQuery) -> Any:
    return msgspec.json.decode(encode(page_of(found, asked)))


def test_what_is_left_out() -> None:
    assert query("") == PageQuery(None, DEFAULT_PAGE, "desc")
    assert query("limit=3&order=asc&after=i1") == PageQuery("i1", 3, "asc")
    assert query(f"limit={MAX_PAGE}").limit == MAX_PAGE


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("limit=0", "limit"), ("limit=101", "limit"), ("limit=-1", "limit"), ("limit=1.0", "limit"),
        ("limit=", "limit"), ("limit=%D9%A3", "limit"), ("limit=" + "9" * 5000, "limit"),
        ("order=up", "order"), ("order=", "order"),
    ],
)  # fmt: skip
def test_other_values_are_refused(text: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        query(text)
    assert (caught.value.status, caught.value.param) == (400, param)


@given(st.integers(0, 12), st.integers(1, 5), st.sampled_from(["asc", "desc"]))
def test_pages_follow_each_other_to_the_end(count: int, limit: int, order: Any) -> None:
    found, after, seen = items(count), None, list[str]()
    while True:
        page = told(found, PageQuery(after, limit, order))
        ids = [item["id"] for item in page["data"]]
        assert len(ids) <= limit
        assert (page["object"], page["first_id"], page["last_id"]) == (
            "list", *((ids[0], ids[-1]) if ids else (None, None)),
        )  # fmt: skip
        seen += ids
        if not page["has_more"]:
            break
        after = page["last_id"]
    expected = [item.id for item in found]
    assert seen == (expected if order == "asc" else expected[::-1])


def test_behind_the_last_there_is_nothing() -> None:
    assert told(items(3), PageQuery("i2", 20, "asc")) == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


def test_a_page_cannot_begin_behind_what_is_not_there() -> None:
    with pytest.raises(ApiError) as caught:
        page_of(items(3), PageQuery("other"))
    assert (caught.value.status, caught.value.param) == (404, "after")
