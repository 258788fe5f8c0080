"""Parameters without effect: accepted at both endpoints, bounded, and truly without effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.gateway.house import House

Make = Callable[..., Any]
HARMLESS: dict[str, Any] = {
    "user": "u" * 512,
    "safety_identifier": "s" * 512,
    "metadata": {f"{i:064}": "v" * 512 for i in range(16)},
    "store": True,
    "spaces_between_special_tokens": False,
}


@pytest.mark.parametrize("name", HARMLESS)
async def test_it_changes_nothing_that_the_engine_is_asked(make_house: Make, name: str) -> None:
    house: House = await make_house()
    for ask in (house.complete, house.chat):
        assert (await ask(seed=1)).status == 200
        assert (await ask(seed=1, **{name: HARMLESS[name]})).status == 200
        plain, same = house.engine.record.submitted[-2:]
        assert msgspec.structs.replace(same, request_id=plain.request_id) == plain


async def test_a_prediction_is_taken_by_chats(make_house: Make) -> None:
    house: House = await make_house()
    assert (await house.chat(prediction={"type": "content", "content": "ok"})).text == "ok"


@pytest.mark.parametrize("retention", ["in-memory", "in_memory", "24h", None])
async def test_retentions(make_house: Make, retention: str | None) -> None:
    house: House = await make_house()
    assert (await house.chat(prompt_cache_retention=retention)).status == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "u" * 513),
        ("safety_identifier", "s" * 513),
        ("prompt_cache_key", "k" * 513),
        ("prompt_cache_retention", "for ever"),
        ("metadata", {str(i): "v" for i in range(17)}),
        ("metadata", {"k" * 65: "v"}),
        ("metadata", {"k": "v" * 513}),
        ("prediction", "ok"),
        ("prediction", {"type": "guess"}),
    ],
)
async def test_what_is_too_large_or_unknown_is_400(make_house: Make, name: str, value: Any) -> None:
    house: House = await make_house()
    reply = await house.chat(**{name: value})
    assert reply.status == 400
    assert reply.error["param"] == name
    assert not house.engine.record.submitted
