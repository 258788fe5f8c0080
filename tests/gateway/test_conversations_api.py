"""/v1/conversations through the official client, async and blocking: what it shows, keeps, refuses."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList

from engine.scripted import Script
from gateway.responses.records import StateSettings
from tests.gateway.house import IM_END, House, text_ids

Make = Callable[..., Any]
USER = {"type": "message", "role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "tide", "arguments": '{"at": 5}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "high"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
FORMS = ("async", "blocking")


@pytest.fixture
async def house(make_house: Make) -> House:
    made: House = await make_house(api_keys=("key", "other"))
    return made


class Client:
    """Calls of ``client.conversations`` by name, of the async or of the blocking client."""

    def __init__(self, client: openai.AsyncOpenAI | openai.OpenAI) -> None:
        self._client = client

    async def call(self, name: str, *arguments: Any, **fields: Any) -> Any:
        method: Any = self._client.conversations
        for part in name.split("."):
            method = getattr(method, part)
        if isinstance(self._client, openai.OpenAI):
            return await asyncio.to_thread(method, *arguments, **fields)
        answer = method(*arguments, **fields)
        return await answer if inspect.isawaitable(answer) else answer

    async def list_all(self, conversation_id: str, **fields: Any) -> list[Any]:
        """Over all pages, as the client fetches them."""
        if isinstance(self._client, openai.OpenAI):
            items = self._client.conversations.items
            return await asyncio.to_thread(lambda: list(items.list(conversation_id, **fields)))
        return [item async for item in self._client.conversations.items.list(conversation_id, **fields)]


@pytest.fixture(params=FORMS)
async def client(house: House, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    options: dict[str, Any] = {"base_url": f"{house.url}/v1", "api_key": "key", "max_retries": 0}
    if request.param == "async":
        async with openai.AsyncOpenAI(**options) as made:
            yield Client(made)
    else:
        with openai.OpenAI(**options) as blocking:
            yield Client(blocking)


def is_valid(value: Any) -> bool:
    """Against the client's own types, which it does not check by itself."""
    type(value).model_validate(value.model_dump(exclude_unset=True, warnings="error"), strict=True)
    return True


async def test_a_conversation_from_its_making_to_its_end(client: Client) -> None:
    before = int(time.time())
    made = await client.call("create", items=[USER], metadata={"topic": "tides"})
    assert isinstance(made, Conversation) and is_valid(made)
    assert made.id.startswith("conv_")
    assert made.metadata == {"topic": "tides"}
    assert before <= made.created_at <= time.time()
    assert await client.call("retrieve", made.id) == made
    changed = await client.call("update", made.id, metadata={"topic": "moons", "n": "2"})
    assert (changed.id, changed.metadata) == (made.id, {"topic": "moons", "n": "2"})
    assert (await client.call("update", made.id, metadata=None)).metadata == {}
    gone = await client.call("delete", made.id)
    assert isinstance(gone, ConversationDeletedResource) and is_valid(gone)
    assert (gone.id, gone.deleted) == (made.id, True)
    for name in ("retrieve", "delete", "items.list"):
        with pytest.raises(openai.NotFoundError):
            await client.call(name, made.id)
    assert (await client.call("create")).metadata == {}


async def test_items_of_every_kind_come_back_as_they_were_sent(client: Client) -> None:
    made = await client.call("create", items=[USER, THOUGHT, CALL])
    added = await client.call("items.create", made.id, items=[RESULT, ASSISTANT])
    assert isinstance(added, ConversationItemList) and is_valid(added)
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[1].id, False)
    user, thought, call, result, assistant = found = await client.list_all(made.id, order="asc")
    assert all(map(is_valid, found))
    assert [item.type for item in found] == [
        "message", "reasoning", "function_call", "function_call_output", "message"
    ]  # fmt: skip
    assert len({item.id for item in found}) == 5
    assert (user.role, user.content[0].type, user.content[0].text) == ("user", "input_text", "Hi")
    assert thought.content[0].text == "Hm."
    assert (call.name, call.call_id, call.arguments) == ("tide", "call_1", '{"at": 5}')
    assert (result.call_id, result.output) == ("call_1", "high")
    assert (assistant.role, assistant.content[0].type, assistant.status) == (
        "assistant", "output_text", "completed"
    )  # fmt: skip
    one = await client.call("items.retrieve", result.id, conversation_id=made.id, include=[])
    assert one == result
    left = await client.call("items.delete", result.id, conversation_id=made.id)
    assert isinstance(left, Conversation)
    assert left.id == made.id
    with pytest.raises(openai.NotFoundError):
        await client.call("items.retrieve", result.id, conversation_id=made.id)
    assert [item.id for item in await client.list_all(made.id)] == [
        assistant.id, call.id, thought.id, user.id
    ]  # fmt: skip


async def test_lists_are_read_page_by_page(client: Client) -> None:
    texts = [f"Message {number}" for number in range(45)]
    made = await client.call("create")
    for start in range(0, 45, 20):
        items = [{"role": "user", "content": text} for text in texts[start : start + 20]]
        await client.call("items.create", made.id, items=items)
    for order, wanted in (("asc", texts), ("desc", texts[::-1])):
        for limit in (1, 20, 44, 45, 100) if order == "asc" else (7,):
            found = await client.list_all(made.id, limit=limit, order=order)
            assert [item.content[0].text for item in found] == wanted
    page = await client.call("items.list", made.id)  # the newest twenty
    assert [item.content[0].text for item in page.data] == texts[:-21:-1]
    assert page.has_more
    rest = await client.call("items.list", made.id, after=page.last_id, limit=100)
    assert [item.content[0].text for item in rest.data] == texts[-21::-1]
    assert not rest.has_more


async def test_what_others_have_is_not_there(house: House, client: Client) -> None:
    made = await client.call("create", items=[USER])
    (item,) = await client.list_all(made.id)
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="other", max_retries=0) as stranger:
        other = Client(stranger)
        own = await other.call("create", items=[USER])
        for name, arguments, fields in (
            ("retrieve", [made.id], {}),
            ("update", [made.id], {"metadata": {}}),
            ("delete", [made.id], {}),
            ("items.create", [made.id], {"items": [USER]}),
            ("items.create", [made.id], {"items": [CALL, RESULT]}),
            ("items.list", [made.id], {}),
            ("items.retrieve", [item.id], {"conversation_id": made.id}),
            ("items.retrieve", [item.id], {"conversation_id": own.id}),
            ("items.delete", [item.id], {"conversation_id": made.id}),
            ("items.delete", [item.id], {"conversation_id": own.id}),
            ("items.list", [own.id], {"after": item.id}),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                await other.call(name, *arguments, **fields)
            assert made.id not in str(refused.value) and item.id not in str(refused.value)
    assert await client.list_all(made.id) == [item]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"type": "web_search_call", "id": "ws_1", "status": "completed"}], "items[0].type"),
        ([USER, {"type": "item_reference", "id": "msg_1"}], "items[1].type"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            "items[0].content[0].type",
        ),
        ([{"role": "wizard", "content": "Hi"}], "items[0].role"),
        ([{"type": "function_call", "name": "tide"}], "items[0].call_id"),
        ([RESULT], "items[0].call_id"),
        ([USER] * 21, "items"),
        ("Hi", "items"),
    ],
)
@pytest.mark.parametrize("client", ["async"], indirect=True)
async def test_items_that_cannot_be_used_are_refused_by_name(client: Client, items: Any, param: str) -> None:
    made = await client.call("create")
    for name, arguments in (("create", []), ("items.create", [made.id])):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.call(name, *arguments, items=items)
        assert refused.value.param == param
    assert await client.list_all(made.id) == []


@pytest.mark.parametrize("client", ["async"], indirect=True)
async def test_metadata_and_queries_have_their_bounds(client: Client, house: House) -> None:
    made = await client.call("create")
    for metadata in ({str(i): "" for i in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}, {"k": 1}):
        for name, arguments in (("create", []), ("update", [made.id])):
            with pytest.raises(openai.BadRequestError, match="metadata"):
                await client.call(name, *arguments, metadata=metadata)
    for fields, param in (({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order")):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.call("items.list", made.id, **fields)
        assert refused.value.param == param
    headers = {"Authorization": "Bearer key", "Content-Type": "application/json"}
    path = f"/v1/conversations/{made.id}"
    for body in (b"", b"[]", b"{", b'{"metadata": {}, "name": "x"}'):
        for there in ("/v1/conversations", path):
            assert (await house.request("POST", there, data=body, headers=headers)).status == 400
    assert (await house.request("POST", path, data=b"{}", headers=headers)).status == 400
    assert (await house.request("GET", path)).status == 401


async def test_a_conversation_that_is_full_says_so(make_house: Make) -> None:
    house = await make_house(state=StateSettings(max_items=3, max_bytes=2**20))
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        made = await client.conversations.create(items=[USER, USER])  # type: ignore[list-item]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.conversations.items.create(made.id, items=[USER, USER])  # type: ignore[list-item]
        assert refused.value.param == "items"
        with pytest.raises(openai.APIStatusError) as large:
            await client.conversations.create(items=[{"role": "user", "content": "x" * 2**19}])
        assert (large.value.status_code, large.value.code) == (413, "history_too_large")
        assert len((await client.conversations.items.list(made.id)).data) == 2


async def test_calls_count_as_requests_of_their_tenant(make_house: Make, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    digest = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # of "key"
    keys.write_text(f'[tenants.acme]\nkeys = ["{digest}"]\nrequests_per_minute = 3\n')
    keys.chmod(0o600)
    house = await make_house(keys_file=keys)
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="key", max_retries=0) as client:
        made = await client.conversations.create()
        await client.conversations.retrieve(made.id)
        await client.conversations.items.list(made.id)
        with pytest.raises(openai.RateLimitError):
            await client.conversations.retrieve(made.id)


async def test_turns_of_responses_become_items(house: House, client: Client) -> None:
    made = await client.call("create", items=[{"role": "developer", "content": "Be brief."}])
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="key", max_retries=0) as asking:
        for text in ("One", "Two"):
            house.say(text_ids(f"{text}!"))
            await asking.responses.create(model="tiny", input=text, conversation=made.id)
    said = [item.content[0].text for item in await client.list_all(made.id, order="asc")]
    assert said == ["Be brief.", "One", "One!", "Two", "Two!"]


async def test_deleting_forgets_the_kv_of_what_was_said(house: House, client: Client) -> None:
    made = await client.call("create")
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="key", max_retries=0) as asking:
        for text in ("One", "Two"):
            house.say(text_ids(f"{text}!"))
            await asking.responses.create(model="tiny", input=text, conversation=made.id)
    with pytest.raises(openai.NotFoundError):
        await client.call("items.delete", "msg_none", conversation_id=made.id)
    first = (await client.list_all(made.id, order="asc"))[0]
    await client.call("items.delete", first.id, conversation_id=made.id)
    await client.call("delete", made.id)
    asked = house.engine.record.submitted[-1].prompt_token_ids
    whole, without_first = house.engine.record.forgotten
    assert whole.from_token == without_first.from_token == 0
    assert whole.token_ids == (*asked, *text_ids("Two!"), IM_END)
    assert "user\nOne" in text_of(whole.token_ids)
    assert "user\nOne" not in text_of(without_first.token_ids)
    assert "One!" in text_of(without_first.token_ids)


async def test_deleting_ends_the_turn_that_runs(make_house: Make) -> None:
    house: House = await make_house(step_s=0.05)
    house.script(Script(token_ids=text_ids("on and on "), endless=True))
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        made = await client.conversations.create()
        running = await client.responses.create(
            model="tiny", input="One", conversation=made.id, background=True
        )
        await client.conversations.delete(made.id)
        assert (await client.responses.retrieve(running.id)).status == "cancelled"
    (forgotten,) = house.engine.record.forgotten
    assert "user\nOne" in text_of(forgotten.token_ids)


def text_of(token_ids: Sequence[int]) -> str:
    return bytes(token for token in token_ids if token < 256).decode()


async def test_conversations_survive_a_restart(make_house: Make, tmp_path: Path) -> None:
    state = StateSettings(tmp_path / "state")
    first: House = await make_house(state=state)
    async with openai.AsyncOpenAI(base_url=f"{first.url}/v1", api_key="none", max_retries=0) as client:
        made = await client.conversations.create(items=[USER], metadata={"k": "v"})  # type: ignore[list-item]
        listed = (await client.conversations.items.list(made.id)).data
    await first.close()
    second: House = await make_house(state=state)
    async with openai.AsyncOpenAI(base_url=f"{second.url}/v1", api_key="none", max_retries=0) as client:
        assert await client.conversations.retrieve(made.id) == made
        assert (await client.conversations.items.list(made.id)).data == listed
