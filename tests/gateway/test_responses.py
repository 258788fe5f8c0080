"""/v1/responses over HTTP, through OpenAI's own client, against a real gateway over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent

from engine.scripted import Script
from gateway.responses.records import ItemRecord, ResponseRecord
from gateway.responses.store import StateStore
from tests.gateway.house import IM_END, House, open_house, text_ids, until

HELLO = "Hello there, friend."


@asynccontextmanager
async def opened(tokenizer_dir: str, **settings: Any) -> AsyncIterator[tuple[House, AsyncOpenAI]]:
    house = await open_house(tokenizer_dir, **settings)
    client = AsyncOpenAI(base_url=house.url + "/v1", api_key="none", max_retries=0)
    try:
        yield house, client
    finally:
        await client.close()
        await house.close()


@pytest.fixture
async def service(tokenizer_dir: str) -> AsyncIterator[tuple[House, AsyncOpenAI]]:
    async with opened(tokenizer_dir) as pair:
        yield pair
        await pair[0].check_alive()


def prompt_of(house: House, index: int = -1) -> str:
    return bytes(i for i in house.engine.record.submitted[index].prompt_token_ids if i < 256).decode()


def text_of(events: Sequence[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_a_response_and_what_follows_it(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say(text_ids(HELLO))
    first = await client.responses.create(model="tiny", input="Hi", instructions="Be kind.")
    assert first.output_text == HELLO
    assert first.status == "completed"
    assert first.usage is not None
    assert first.usage.output_tokens == len(HELLO) + 1
    house.say(text_ids("Fine."))
    second = await client.responses.create(model="tiny", input="How are you?", previous_response_id=first.id)
    assert second.output_text == "Fine."
    assert second.previous_response_id == first.id
    prompt = prompt_of(house)
    assert prompt.index("Hi") < prompt.index(HELLO) < prompt.index("How are you?")
    assert "Be kind." not in prompt  # instructions are of one turn
    assert house.engine.record.submitted[0].session == house.engine.record.submitted[1].session != ""
    found = await client.responses.retrieve(second.id)
    assert found.to_dict() == second.to_dict()
    items = (await client.responses.input_items.list(second.id, order="asc")).data
    assert [item.type for item in items] == ["message"] * 3


async def test_events_are_typed_and_numbered_without_a_gap(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say(text_ids(HELLO))
    stream = await client.responses.create(model="tiny", input="Hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress",
        "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert text_of(events) == HELLO
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == HELLO


async def test_the_sdk_helper_reads_a_stream(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say(text_ids(HELLO))
    async with client.responses.stream(model="tiny", input="Hi") as stream:
        final = await stream.get_final_response()
    assert final.output_text == HELLO


async def test_a_stream_goes_on_from_every_event(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say(text_ids("short"))
    stream = await client.responses.create(model="tiny", input="Hi", stream=True)
    events = [event async for event in stream]
    assert events[0].type == "response.created"
    response_id = events[0].response.id
    for known in range(len(events)):
        rest = await client.responses.retrieve(response_id, stream=True, starting_after=known)
        resumed = [event async for event in rest]
        assert [e.to_dict() for e in events[: known + 1] + resumed] == [e.to_dict() for e in events]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.retrieve(response_id, stream=True, starting_after=len(events))
    assert refused.value.param == "starting_after"


async def test_a_client_that_goes_finds_all_of_it_again(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, step_s=0.01) as (house, client):
        house.say(text_ids(HELLO))
        stream = await client.responses.create(model="tiny", input="Hi", stream=True)
        seen: list[ResponseStreamEvent] = []
        async for event in stream:
            seen.append(event)
            if len(seen) == 6:
                await stream.close()
                break
        assert seen[0].type == "response.created"
        response_id = seen[0].response.id
        rest = await client.responses.retrieve(
            response_id, stream=True, starting_after=seen[-1].sequence_number
        )
        seen += [event async for event in rest]
        assert text_of(seen) == HELLO
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert (await client.responses.retrieve(response_id)).status == "completed"


@pytest.mark.parametrize("store", [False, True])
async def test_whose_client_stays_away_is_given_up(tokenizer_dir: str, store: bool) -> None:
    """At once if nothing is stored, else after a while; and then nothing of it can be gone on from."""
    async with opened(tokenizer_dir, step_s=0.005, detached_s=0.1) as (house, client):
        house.script(Script(token_ids=text_ids("go on "), endless=True))
        stream = await client.responses.create(
            model="tiny", input="Hi", stream=True, store=store, max_output_tokens=200
        )
        created = await anext(aiter(stream))
        assert created.type == "response.created"
        await stream.close()
        await until(lambda: bool(house.engine.record.aborted))
        await house.idle()
        if not store:
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(created.response.id)
            return
        found = await client.responses.retrieve(created.response.id)
        assert (found.status, found.output) == ("cancelled", [])
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(
                model="tiny", input="And?", previous_response_id=created.response.id
            )
        assert refused.value.code == "previous_response_not_found"


async def test_who_goes_while_it_is_kept_leaves_nothing_that_never_ends(
    tokenizer_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tokenizer_dir, detached_s=0.02) as (house, client):
        reached, go_on = asyncio.Event(), asyncio.Event()
        put, ids = StateStore.put_response, list[str]()

        async def slow_put(store: StateStore, record: ResponseRecord) -> None:
            ids.append(record.id)
            reached.set()
            await go_on.wait()
            await put(store, record)

        monkeypatch.setattr(StateStore, "put_response", slow_put)
        asking = asyncio.ensure_future(client.responses.create(model="tiny", input="Hi"))
        await reached.wait()
        asking.cancel()
        await asyncio.sleep(0.05)
        go_on.set()
        await until(lambda: bool(house.engine.record.submitted))
        await house.idle()
        assert (await client.responses.retrieve(ids[0])).status in ("completed", "cancelled")


async def test_a_background_response_runs_to_its_end(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, step_s=0.002, detached_s=0.01) as (house, client):
        house.say(text_ids(HELLO))
        queued = await client.responses.create(model="tiny", input="Hi", background=True)
        assert queued.status in ("queued", "in_progress")
        while (found := await client.responses.retrieve(queued.id)).status == "in_progress":
            await asyncio.sleep(0.01)
        assert found.output_text == HELLO


async def test_cancel_and_delete(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, step_s=0.005) as (house, client):
        house.script(Script(token_ids=text_ids("go on "), endless=True))
        queued = await client.responses.create(model="tiny", input="Hi", background=True)
        cancelled = await client.responses.cancel(queued.id)
        assert cancelled.status == "cancelled"
        assert (await client.responses.cancel(queued.id)).status == "cancelled"
        await house.idle()
        await client.responses.delete(queued.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(queued.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(queued.id)


async def test_cancelling_what_is_not_stored_is_answered_with_its_end(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, step_s=0.005) as (house, client):
        house.script(Script(token_ids=text_ids("go on "), endless=True))
        stream = await client.responses.create(model="tiny", input="Hi", store=False, stream=True)
        begun = await anext(stream)
        assert begun.type == "response.created"
        cancelled = await client.responses.cancel(begun.response.id)
        assert (cancelled.id, cancelled.status) == (begun.response.id, "cancelled")
        await stream.close()
        await house.idle()


async def test_deleting_forgets_the_kv_of_that_turn_only(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say(text_ids(HELLO))
    first = await client.responses.create(model="tiny", input="Hi")
    house.say(text_ids("Fine."))
    second = await client.responses.create(model="tiny", input="How are you?", previous_response_id=first.id)
    await client.responses.delete(second.id)
    (forgotten,) = house.engine.record.forgotten
    submitted = house.engine.record.submitted[1]
    assert forgotten.token_ids == (*submitted.prompt_token_ids, *text_ids("Fine."), IM_END)
    kept = bytes(i for i in forgotten.token_ids[: forgotten.from_token] if i < 256).decode()
    assert HELLO in kept
    assert "How are you?" not in kept
    third = await client.responses.create(model="tiny", input="Still?", previous_response_id=first.id)
    assert third.output_text == "ok"


@pytest.mark.case("E6")
async def test_a_turn_waits_its_turn(tokenizer_dir: str) -> None:
    """While one runs nothing follows it; what was cut off is in nobody's history."""
    async with opened(tokenizer_dir, step_s=0.005, detached_s=5) as (house, client):
        conversation = await client.conversations.create()
        house.script(Script(token_ids=text_ids("never ends "), endless=True))
        running = await client.responses.create(
            model="tiny", input="First", conversation=conversation.id, stream=True, max_output_tokens=200
        )
        created = await anext(aiter(running))
        assert created.type == "response.created"
        await running.close()  # the client drops it, and asks on at once
        with pytest.raises(openai.ConflictError):
            await client.responses.create(model="tiny", input="Second", conversation=conversation.id)
        with pytest.raises(openai.ConflictError):
            await client.responses.create(
                model="tiny", input="Second", previous_response_id=created.response.id
            )
        await client.responses.cancel(created.response.id)
        for text in ("Third", "Fourth"):
            answer = await client.responses.create(model="tiny", input=text, conversation=conversation.id)
            assert answer.output_text == "ok"
        prompt = prompt_of(house)
        assert "never ends" not in prompt
        assert "First" not in prompt
        assert prompt.index("Third") < prompt.index("ok") < prompt.index("Fourth")
        await house.idle()
        assert house.engine.stats.blocks_in_use == 0


@pytest.mark.case("E6")
async def test_a_turn_that_ends_while_another_comes_is_in_its_history(
    tokenizer_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tokenizer_dir, step_s=0.005) as (house, client):
        conversation = await client.conversations.create()
        house.script(Script(token_ids=text_ids("Fine. "), endless=True))
        first = await client.responses.create(
            model="tiny", input="First", conversation=conversation.id, background=True, max_output_tokens=20
        )
        history = StateStore.conversation_history

        async def slow_history(store: StateStore, tenant: str, conversation_id: str) -> Any:
            items = await history(store, tenant, conversation_id)
            while (await client.responses.retrieve(first.id)).status != "incomplete":
                await asyncio.sleep(0.005)
            return items

        monkeypatch.setattr(StateStore, "conversation_history", slow_history)
        try:
            await client.responses.create(model="tiny", input="Second", conversation=conversation.id)
        except openai.ConflictError:
            return  # it was still running
        assert "First" in prompt_of(house)


@pytest.mark.parametrize("how", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}])
async def test_preparing_a_turn_answers_nothing(
    service: tuple[House, AsyncOpenAI], how: dict[str, Any]
) -> None:
    house, client = service
    first = await client.responses.create(model="tiny", input="Hi")
    ready = await client.responses.create(
        model="tiny", input="Soon more.", previous_response_id=first.id, extra_body=how
    )
    assert (ready.status, ready.output) == ("completed", [])
    assert ready.usage is not None
    assert ready.usage.output_tokens == 0
    prepared = house.engine.record.submitted[-1]
    assert prepared.sampling.max_tokens == 0
    answer = await client.responses.create(model="tiny", input="Now.", previous_response_id=ready.id)
    assert answer.output_text == "ok"
    size = len(prepared.prompt_token_ids)
    assert house.engine.record.submitted[-1].prompt_token_ids[:size] == prepared.prompt_token_ids


TOOL: dict[str, Any] = {
    "type": "function", "name": "look", "description": "Looks.", "strict": False,
    "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
}  # fmt: skip


async def test_calls_and_their_results(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, info={"max_model_len": 2048, "num_blocks": 256}) as (house, client):
        await check_calls(house, client)
        await house.check_alive()


async def check_calls(house: House, client: AsyncOpenAI) -> None:
    arguments = '{"where": "there"}'
    house.say(text_ids('<tool_call>{"name": "look", "arguments": ' + arguments + "}</tool_call>"))
    stream = await client.responses.create(model="tiny", input="Look there.", tools=[TOOL], stream=True)
    events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.completed"
    (call,) = last.response.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("look", arguments)
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == arguments
    house.say(text_ids("It is there."))
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "a cat"}
    answer = await client.responses.create(
        model="tiny", input=[result], previous_response_id=last.response.id, tools=[TOOL]
    )
    assert answer.output_text == "It is there."
    assert "a cat" in prompt_of(house)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="tiny", input=[{**result, "call_id": "other"}])
    assert refused.value.param == "input[0].call_id"


@pytest.mark.parametrize("per_step", [1, 3, 1000])
async def test_what_is_said_around_calls_stays_around_them(tokenizer_dir: str, per_step: int) -> None:
    """However much of the answer comes at once."""
    call = '<tool_call>{"name": "look", "arguments": {"where": "there"}}</tool_call>'
    async with opened(tokenizer_dir, info={"max_model_len": 2048, "num_blocks": 256}) as (house, client):
        house.say(text_ids(f"Well: {call} Or: {call} Done."), per_step=per_step)
        stream = await client.responses.create(model="tiny", input="Look.", tools=[TOOL], stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.completed"
        assert [
            item.arguments if item.type == "function_call" else item.content[0].text.strip()  # type: ignore
            for item in last.response.output
        ] == ["Well:", '{"where": "there"}', "Or:", '{"where": "there"}', "Done."]
        await house.check_alive()


async def test_an_answer_without_a_word_can_be_followed(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say([])
    answer = await client.responses.create(model="tiny", input="Say nothing.")
    assert (answer.status, answer.output_text) == ("completed", "")
    (item,) = answer.output
    assert item.type == "message"
    await client.responses.create(model="tiny", input="Thanks.", previous_response_id=answer.id)
    assert prompt_of(house).count("assistant") == 2


async def test_numbers_of_any_size_come_back(service: tuple[House, AsyncOpenAI]) -> None:
    _, client = service
    schema = {"type": "object", "properties": {"x": {"maximum": 2**70}}}
    tool: Any = {**TOOL, "parameters": schema}
    answer = await client.responses.create(model="tiny", input="x", tools=[tool], tool_choice="none")
    (shown,) = (await client.responses.retrieve(answer.id)).tools
    assert shown.type == "function"
    assert shown.parameters == schema


async def test_log_probabilities(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say(text_ids("ab"))
    answer = await client.responses.create(
        model="tiny", input="Hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    (message,) = answer.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [entry.token for entry in part.logprobs] == ["a", "b"]
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


async def test_a_text_has_the_form_that_was_asked_for(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await client.responses.create(
        model="tiny", input="Hi", text={"format": {"type": "json_schema", "name": "x", "schema": schema}}
    )
    grammar = house.engine.record.submitted[-1].sampling.grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"
    assert '"integer"' in grammar.text


async def test_a_form_that_the_engine_refuses_is_named_as_it_is_here(
    service: tuple[House, AsyncOpenAI],
) -> None:
    house, client = service
    house.script(Script(token_ids=[], refusal="The JSON schema has a 'type' that does not exist."))
    wanted: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "frob"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="tiny", input="Hi", text=wanted)
    assert refused.value.param == "text.format.schema"


async def test_truncation_drops_the_oldest_turns(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    turns: list[Any] = [
        {"role": role, "content": f"{role} {i} " + "x" * 40}
        for i in range(6)
        for role in ("user", "assistant")
    ]
    turns.append({"role": "user", "content": "the last"})
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="tiny", input=turns, instructions="Be kind.")
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input"
    answer = await client.responses.create(
        model="tiny", input=turns, instructions="Be kind.", truncation="auto", max_output_tokens=20
    )
    assert answer.output_text == "ok"
    prompt = prompt_of(house)
    assert "Be kind." in prompt
    assert "the last" in prompt
    assert "user 0" not in prompt
    assert "user 5" in prompt


async def test_an_answer_that_is_cut_off_is_incomplete(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.say(text_ids(HELLO))
    answer = await client.responses.create(model="tiny", input="Hi", max_output_tokens=5)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == HELLO[:5]
    more = await client.responses.create(model="tiny", input="Go on", previous_response_id=answer.id)
    assert more.output_text == "ok"


async def test_what_fails_is_a_status_or_the_last_event(service: tuple[House, AsyncOpenAI]) -> None:
    house, client = service
    house.script(Script(token_ids=text_ids(HELLO), fail_after=3))
    with pytest.raises(openai.InternalServerError) as failure:
        await client.responses.create(model="tiny", input="Hi")
    assert failure.value.code == "request_failed"
    house.script(Script(token_ids=text_ids(HELLO), fail_after=3))
    stream = await client.responses.create(model="tiny", input="Hi", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    found: Response = await client.responses.retrieve(last.response.id)
    assert (found.status, found.output) == ("failed", [])


NAMED = {"type": "function", "name": "f"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"temperature": 3}, "temperature"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"background": True, "store": False}, "background"),
    ({"conversation": "c", "previous_response_id": "r"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"truncation": "most"}, "truncation"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [NAMED], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ({"tools": [NAMED], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
     "tool_choice.tools"),
    ({"tools": [NAMED, NAMED]}, "tools[1].name"),
    ({"prompt_cache_options": {"ttl": "soon"}}, "prompt_cache_options.ttl"),
    ({"messages": []}, "messages"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param"), BAD)
async def test_bad_requests_cost_one_400(
    make_house: Callable[..., Any], change: dict[str, Any], param: str
) -> None:
    house = await make_house()
    reply = await house.request("POST", "/v1/responses", json={"input": "Hi", **change})
    assert (reply.status, reply.error["param"]) == (400, param)
    assert "messages" not in reply.error["message"] or param == "messages"
    await house.check_alive()


@pytest.mark.parametrize("order", ["before", "after"])
async def test_input_items_are_no_output_though_it_comes_just_then(
    tokenizer_dir: str, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """A response that ends between two looks at the store."""
    async with opened(tokenizer_dir, step_s=0.005) as (house, client):
        house.say(text_ids(HELLO))
        queued = await client.responses.create(model="tiny", input="Hi", background=True)
        history = StateStore.history

        async def late(store: StateStore, tenant: str, response_id: str) -> tuple[ItemRecord, ...] | None:
            early = await history(store, tenant, response_id)
            while (await client.responses.retrieve(queued.id)).status != "completed":
                await asyncio.sleep(0.005)
            return early if order == "before" else await history(store, tenant, response_id)

        monkeypatch.setattr(StateStore, "history", late)
        (item,) = (await client.responses.input_items.list(queued.id)).data
        assert item.type == "message"
        assert item.role == "user"


async def test_ids_of_others_are_unknown(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, api_keys=("sk-a", "sk-b")) as (house, client):
        ours, theirs = client.with_options(api_key="sk-a"), client.with_options(api_key="sk-b")
        answer = await ours.responses.create(model="tiny", input="Hi")
        for call in (
            theirs.responses.retrieve(answer.id),
            theirs.responses.cancel(answer.id),
            theirs.responses.delete(answer.id),
            theirs.responses.create(model="tiny", input="And?", previous_response_id=answer.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        with pytest.raises(openai.NotFoundError):
            await theirs.responses.input_items.list(answer.id)
        assert (await ours.responses.retrieve(answer.id)).output_text == "ok"
        await house.idle()
