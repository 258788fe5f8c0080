"""Drivers against a scripted server in a process of its own, whose stamps are of the same clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from benchmarks.scripted_openai import Reply, Script, ScriptedServer, scripted_openai
from loadtest.drivers.apis import Options
from loadtest.drivers.base import PastTurn
from loadtest.drivers.target import ApiName, TransportName
from loadtest.plan import READ_ALL, PlannedRequest, Reading
from loadtest.timeline import Outcome, Timeline, Usage
from tests.support.drive import TEXT, WAYS, Drive


@pytest.fixture(scope="module")
def process() -> Iterator[ScriptedServer]:
    with scripted_openai() as server:
        yield server


@pytest.mark.parametrize("way", WAYS)
async def test_what_comes_is_stamped_after_it_was_written_and_in_order(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(replies=(Reply(first_s=0.02, gap_s=0.01),)))
    drive = Drive(process, way)
    timeline, turn = await drive.ask(output_len=8)
    (record,) = process.records()
    await drive.driver.close()
    assert (timeline.outcome, timeline.reason) == (Outcome.COMPLETED, "")
    assert turn is not None and turn.answered == " so" * 8
    assert timeline.sent_at is not None and timeline.ended_at is not None
    assert timeline.sent_at + drive.origin <= record.arrived_at
    came = [at + drive.origin for at in timeline.piece_times[0]]
    assert len(came) == 8
    assert all(wrote <= at for wrote, at in zip(record.written_at[0], came, strict=True))
    assert all(earlier <= later for earlier, later in pairwise(came))
    assert record.ended_at is not None and record.ended_at <= timeline.ended_at + drive.origin
    prompt_tokens = 5 if way[0] == "completions" else 14
    assert timeline.usage == Usage(prompt_tokens, 8, 0)
    assert timeline.finish_reasons == ["length"]


@pytest.mark.case("G4")
@pytest.mark.parametrize("way", WAYS)
async def test_tokens_are_counted_by_usage_whatever_text_they_are(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    """A hundred spaces, in seven pieces; a tokenizer would make a handful of tokens of their text."""
    process.rewrite(Script(replies=(Reply(word="", tokens_each=15),)))
    drive = Drive(process, way)
    timeline, turn = await drive.ask(output_len=100)
    await drive.driver.close()
    assert turn is not None and turn.answered == " " * 100
    assert len(timeline.piece_times[0]) == 7
    assert timeline.usage is not None and timeline.usage.completion_tokens == 100


@pytest.mark.parametrize("way", WAYS)
async def test_tokens_are_counted_by_usage_however_few_pieces_they_come_in(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(replies=(Reply(tokens_each=50, together=True),)))
    drive = Drive(process, way)
    timeline, _ = await drive.ask(output_len=100)
    await drive.driver.close()
    assert len(timeline.piece_times[0]) == 2
    assert timeline.usage is not None and timeline.usage.completion_tokens == 100


async def test_tokens_of_each_piece_are_known_where_the_server_tells(process: ScriptedServer) -> None:
    process.rewrite(Script(replies=(Reply(tokens_each=4),)))
    drive = Drive(process, options=Options(tells_usage=True, tells_usage_so_far=True))
    timeline, _ = await drive.ask(output_len=10)
    await drive.driver.close()
    assert timeline.piece_tokens == [[4, 4, 2]]


async def test_several_choices_have_times_of_their_own(process: ScriptedServer) -> None:
    process.rewrite(Script(replies=(Reply(gap_s=0.005),)))
    drive = Drive(process)
    timeline, _ = await drive.ask(output_len=4, n=3)
    await drive.driver.close()
    assert [len(times) for times in timeline.piece_times] == [4, 4, 4]
    assert timeline.finish_reasons == ["length"] * 3
    assert timeline.usage is not None and timeline.usage.completion_tokens == 12


# ---- connections -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_connection_is_used_again(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script())
    drive = Drive(process, way)
    for _ in range(3):
        timeline, _ = await drive.ask()
        assert timeline.outcome is Outcome.COMPLETED
    await asyncio.gather(*(drive.ask() for _ in range(3)))
    await drive.driver.close()
    connections = [record.connection for record in process.records()]
    assert len(set(connections[:3])) == 1
    assert len(set(connections[3:])) == 3
    assert connections[0] in connections[3:]


@pytest.mark.parametrize("ends_in_s", [0.05, 60.0])
async def test_who_has_his_answer_does_not_wait_for_the_end_of_its_response(
    process: ScriptedServer, monkeypatch: pytest.MonkeyPatch, ends_in_s: float
) -> None:
    monkeypatch.setattr("loadtest.drivers.sse._ENDING_S", ends_in_s)
    process.rewrite(Script(replies=(Reply(stays_open=True), Reply(), Reply())))
    drive = Drive(process)
    timeline, _ = await drive.ask()
    later, _ = await drive.ask()
    await asyncio.sleep(0.1)
    last, _ = await drive.ask()
    await drive.driver.close()
    assert {one.outcome for one in (timeline, later, last)} == {Outcome.COMPLETED}
    assert timeline.ended_at is not None and later.sent_at is not None
    assert later.sent_at - timeline.ended_at < 30
    first, *others = [record.connection for record in process.records()]
    assert set(others) == {others[0]} != {first}


async def test_the_connection_of_a_response_that_ended_late_is_used_again(process: ScriptedServer) -> None:
    process.rewrite(Script(replies=(Reply(end_late_s=0.05),)))
    drive = Drive(process)
    first, second = [(await drive.ask())[0] for _ in range(2)]
    await asyncio.sleep(0.2)
    await asyncio.gather(*(drive.ask() for _ in range(2)))
    await drive.driver.close()
    assert first.ended_at is not None and second.sent_at is not None
    connections = [record.connection for record in process.records()]
    assert connections[0] != connections[1]  # the end of the first was still to come
    assert set(connections[2:]) == set(connections[:2])


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_on_a_connection_that_was_just_closed_is_put_on_another(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(drops_reused_s=0.0))
    drive = Drive(process, way)
    timelines = [(await drive.ask())[0] for _ in range(3)]
    await drive.driver.close()
    assert [timeline.outcome for timeline in timelines] == [Outcome.COMPLETED] * 3
    assert [timeline.resent for timeline in timelines] == [0, 1, 1]
    assert len({record.connection for record in process.records()}) == 3


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_that_the_server_has_had_for_a_while_is_lost_with_its_connection(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    """It may have died of it: sent again, nobody would know."""
    process.rewrite(Script(drops_reused_s=0.3))
    drive = Drive(process, way)
    (first, _), (second, _) = await drive.ask(), await drive.ask()
    await drive.driver.close()
    assert first.outcome is Outcome.COMPLETED
    assert (second.outcome, second.reason, second.resent) == (Outcome.FAILED, "connection closed", 0)


@pytest.mark.parametrize(("code", "reason"), [(1001, ""), (1008, "websocket closed 1008")])
async def test_a_websocket_that_goes_is_told_from_one_that_minds_the_request(
    process: ScriptedServer, code: int, reason: str
) -> None:
    process.rewrite(Script(drops_reused_s=0.0, close_code=code))
    drive = Drive(process, ("responses", "ws"))
    (first, _), (second, _) = await drive.ask(), await drive.ask()
    await drive.driver.close()
    assert first.outcome is Outcome.COMPLETED
    assert (second.reason, second.resent) == (reason, 0 if reason else 1)


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_that_is_cancelled_stays_unfinished_and_leaves_nothing_running(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(replies=[Reply(gap_s=0.01), Reply()]))
    drive = Drive(process, way)
    planned = PlannedRequest(0, TEXT, 0, 1000)
    timeline = Timeline(planned, 0, 0, 0.0)
    asking = asyncio.create_task(drive.driver.perform(drive.driver.prepare(planned), (), timeline))
    async with asyncio.timeout(10):
        while not (timeline.piece_times and timeline.piece_times[0]):
            await asyncio.sleep(0.005)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (timeline.outcome, timeline.ended_at) == (Outcome.UNFINISHED, None)
    later, _ = await drive.ask()
    await drive.driver.close()
    assert later.outcome is Outcome.COMPLETED
    first, second = process.records()
    assert first.was_left
    assert first.connection != second.connection


# ---- how a client reads ------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_who_leaves_is_gone_for_the_server_too(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(replies=[Reply(gap_s=0.01), Reply()]))
    drive = Drive(process, way)
    timeline, turn = await drive.ask(output_len=1000, reading=Reading(leave_after=3))
    later, _ = await drive.ask()
    async with asyncio.timeout(10):
        while not process.records()[0].was_left:
            await asyncio.sleep(0.01)
    await drive.driver.close()
    assert (timeline.outcome, turn) == (Outcome.LEFT, None)
    assert len(timeline.piece_times[0]) == 3
    assert timeline.ended_at == timeline.piece_times[0][-1]
    assert later.outcome is Outcome.COMPLETED
    first, _ = process.records()
    assert len(first.written_at[0]) < 1000


@pytest.mark.parametrize("way", WAYS)
async def test_a_slow_reader_takes_his_time(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    process.rewrite(Script(replies=(Reply(gap_s=0.004),)))
    drive = Drive(process, way)
    timeline, _ = await drive.ask(output_len=12, reading=Reading(pause_s=0.02))
    (record,) = process.records()
    await drive.driver.close()
    assert timeline.outcome is Outcome.COMPLETED
    came = timeline.piece_times[0]
    assert len(came) == 12
    assert came[-1] - came[0] > 2 * (record.written_at[0][-1] - record.written_at[0][0])


@pytest.mark.parametrize("way", WAYS)
async def test_a_servers_writes_wait_for_a_slow_reader_and_for_no_other(
    process: ScriptedServer, way: tuple[ApiName, TransportName]
) -> None:
    """The answer would fit into the buffers that an ordinary connection has."""
    process.rewrite(Script(replies=(Reply(word="long" * 300),), send_buffer=4096))
    drive = Drive(process, way)
    read = [
        (await drive.ask(output_len=40, reading=reading))[0]
        for reading in (READ_ALL, Reading(pause_s=0.01), READ_ALL)
    ]
    records = process.records()
    await drive.driver.close()
    assert [timeline.outcome for timeline in read] == [Outcome.COMPLETED] * 3
    wrote_s = [record.written_at[0][-1] - record.written_at[0][0] for record in records]
    came = read[1].piece_times[0]
    assert wrote_s[1] > 0.5 * (came[-1] - came[0]) > 2 * max(wrote_s[0], wrote_s[2])
    assert records[0].connection == records[2].connection != records[1].connection


# ---- conversations -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keeps_responses", [True, False])
async def test_a_later_turn_builds_on_the_earlier_ones(
    process: ScriptedServer, way: tuple[ApiName, TransportName], keeps_responses: bool
) -> None:
    process.rewrite(Script())
    drive = Drive(process, way, Options(tells_usage=True, keeps_responses=keeps_responses))
    past: tuple[PastTurn, ...] = ()
    counted = []
    for _ in range(3):
        timeline, turn = await drive.ask(past=past, output_len=5)
        assert turn is not None and timeline.usage is not None
        past = (*past, turn)
        counted.append(timeline.usage.prompt_tokens)
    await drive.driver.close()
    growth = 5 + 4 + (0 if way[0] == "completions" else 6)
    assert [later - earlier for earlier, later in pairwise(counted)] == [growth, growth]
    by_id = keeps_responses and way[0] == "responses"
    assert ("previous_response_id" in process.records()[-1].body) is by_id
