"""Lists of items a page at a time, as OpenAI's clients ask for them. Pure but for the query's type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec
from aiohttp import web

from gateway.errors import ApiError, ErrorKind, bad_request
from gateway.openai.responses.items import Item
from gateway.openai.responses.shape import ItemList
from gateway.responses.records import ItemRecord

MAX_PAGE = 100
DEFAULT_PAGE = 20


@dataclass(frozen=True, slots=True)
class PageQuery:
    """``after``: the id of the last item of the page before."""

    after: str | None = None
    limit: int = DEFAULT_PAGE
    order: Literal["asc", "desc"] = "desc"


def page_query(http: web.Request) -> PageQuery:
    """Raises ApiError naming the first bad parameter."""
    limit, order = http.query.get("limit", str(DEFAULT_PAGE)), http.query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_PAGE):
        raise bad_request("limit", f"'limit' must be at least 1 and at most {MAX_PAGE}.")
    if order not in ("asc", "desc"):
        raise bad_request("order", "'order' must be asc or desc.")
    return PageQuery(http.query.get("after"), int(limit), "asc" if order == "asc" else "desc")


def page_of(items: Sequence[ItemRecord], query: PageQuery) -> ItemList:
    """Of items that are all at hand, oldest first. Raises ApiError if ``after`` is none of them."""
    ordered = list(items) if query.order == "asc" else list(reversed(items))
    start = 0
    if query.after is not None:
        ids = [item.id for item in ordered]
        if query.after not in ids:
            raise ApiError(ErrorKind.NOT_FOUND, "There is no item with this id.", param="after")
        start = ids.index(query.after) + 1
    page = ordered[start : start + query.limit]
    return item_list(page, has_more=start + query.limit < len(ordered))


def item_list(page: Sequence[ItemRecord], *, has_more: bool) -> ItemList:
    return ItemList(
        data=cast(list[Item], [msgspec.Raw(item.body) for item in page]),
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=has_more,
    )
