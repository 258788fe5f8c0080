"""The chat page in a browser: talking, stopping, branching, and going on after a reload or a broken line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.gateway.house import until
from tests.web.chat import Chat, Wire
from tests.web.conftest import OpenPage
from tests.web.house_thread import HouseThread

LONG = " ".join(f"word{number}" for number in range(150))


def open_chat(open_page: OpenPage, house: HouseThread, **options: Any) -> Chat:
    return Chat(open_page(house.house.url, **options)).connected()


def open_wired(browser_page: Page, house: HouseThread, cuts: list[int] | None = None) -> tuple[Chat, Wire]:
    """The same with its WebSockets seen."""
    wire = Wire(browser_page, cuts)
    browser_page.goto(house.house.url)
    return Chat(browser_page), wire


def test_a_message_is_answered_and_the_next_one_goes_on_from_it(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat = open_chat(open_page, house)
    house.say("The tide is *coming* in.")
    assert chat.ask("Hello there") == "The tide is coming in."
    expect(chat.box).to_have_value("")
    expect(chat.page.get_by_role("heading", level=2, name="Hello there")).to_be_visible()
    expect(chat.page.locator("#announcer")).to_have_text("Answer: The tide is *coming* in.")
    expect(chat.answers.last).to_contain_text(re.compile(r"tokens/s · first after .+ in · \d+ out"))
    house.say("And out again.")
    assert chat.ask("And then?") == "And out again."
    assert "Hello there" in house.prompts[-1] and "*coming*" in house.prompts[-1]
    assert [turn["status"] for turn in chat.kept()[0]["turns"]] == ["done", "done"]


def test_stop_ends_it_and_what_was_read_of_it_is_remembered(open_page: OpenPage, house: HouseThread) -> None:
    chat = open_chat(open_page, house)
    house.say_without_end("on and ")
    chat.send("Go on for ever")
    chat.wait_for_text(30)
    chat.page.get_by_role("button", name="Stop").click()
    stopped = chat.wait_ended("stopped")
    assert stopped.startswith("on and on and")
    expect(chat.answers.last).to_contain_text("Stopped.")
    expect(chat.page.get_by_role("button", name="Send")).to_be_visible()
    house.call(house.house.idle())  # nothing goes on behind our back
    house.say("Enough.")
    assert chat.ask("And now?") == "Enough."
    prompt = house.prompts[-1]
    assert "Go on for ever" in prompt and stopped.strip() in prompt


def test_an_edited_message_is_a_fork_and_branches_can_be_switched(
    open_page: OpenPage, house: HouseThread
) -> None:
    page = open_page("about:blank")
    chat, wire = open_wired(page, house)
    chat.connected()
    for answer in ("First answer.", "Second answer."):
        house.say(answer)
        chat.ask(f"Question for {answer}")
    house.say("Forked answer.")
    chat.turns.last.hover()
    page.get_by_role("button", name="Edit this message and branch off").last.click()
    editor = page.get_by_role("textbox", name="Edit your message")
    expect(editor).to_be_focused()
    editor.fill("Another question")
    editor.press("Enter")
    expect(chat.answers.last.locator(".prose")).to_have_text("Forked answer.")
    expect(chat.turns).to_have_count(2)
    first, second, fork = wire.creates
    assert fork["previous_response_id"] == second["previous_response_id"]
    assert fork["stream_id"] not in (first["stream_id"], second["stream_id"])
    assert "Question for Second" not in house.prompts[-1]
    page.get_by_role("button", name="Previous branch").click()
    expect(chat.answers.last.locator(".prose")).to_have_text("Second answer.")
    expect(page.get_by_role("button", name="Next branch")).to_be_focused()
    page.reload()
    chat.connected()
    assert chat.text() == "Second answer."  # which branch is shown is kept, too
    house.say("Onwards.")
    chat.ask("From here")
    assert "Question for Second" in house.prompts[-1] and "Another question" not in house.prompts[-1]
    house.say("Onwards again.")
    page.get_by_role("button", name="Again").last.click()
    expect(chat.answers.last.locator(".prose")).to_have_text("Onwards again.")
    expect(chat.turns.last).to_contain_text("2 / 2")
    assert house.prompts[-1] == house.prompts[-2]


def test_a_reload_in_mid_stream_loses_and_doubles_nothing(open_page: OpenPage, house: HouseThread) -> None:
    chat = open_chat(open_page, house)
    house.say(LONG)
    chat.send("Talk to me")
    for length in (1, 200, 600):
        assert LONG.startswith(chat.wait_for_text(length))
        chat.page.reload()
        assert LONG.startswith(chat.text())
    assert chat.wait_ended() == LONG
    assert len(house.house.engine.record.submitted) == 1


def test_a_message_that_the_server_did_not_get_is_sent_again(open_page: OpenPage, house: HouseThread) -> None:
    page = open_page("about:blank")
    chat, wire = open_wired(page, house, [0, 0, 3])
    for text in ("Here you are.", "And here."):
        house.say(text)
    chat.connected().send("Anybody there?")  # twice to nobody
    assert chat.wait_ended() == "Here you are."
    wire.is_down = True
    page.reload()
    chat.send("And now?")
    expect(chat.turns.last).to_have_attribute("data-status", "sending")
    page.reload()  # with nothing sent at all
    wire.is_down = False
    assert chat.wait_ended() == "And here."


def test_a_socket_that_breaks_after_any_event_loses_and_doubles_nothing(
    open_page: OpenPage, house: HouseThread
) -> None:
    page = open_page("about:blank")
    chat, wire = open_wired(page, house, [1, 2, 3, 1, 5, 1, 2])
    text = "The tide comes in, and the tide goes out."
    house.say(text)
    chat.send("Tell me")
    assert chat.wait_ended() == text
    assert len(wire.urls) > 5
    assert len(wire.creates) == 1
    deltas = [event for event in wire.received if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == text  # what came, came once
    numbers = [event["sequence_number"] for event in wire.received]
    assert numbers == list(range(len(numbers)))


def test_an_answer_that_nobody_came_back_for_in_time_says_so(
    open_page: OpenPage, make_house: Callable[..., HouseThread]
) -> None:
    house = make_house(step_s=0.01, detached_s=0.3)  # after which it is stopped, and its events forgotten
    chat = open_chat(open_page, house)
    house.say(LONG)
    chat.send("Talk to me")
    chat.wait_for_text(20)
    chat.page.goto("about:blank")
    house.call(house.house.idle())
    chat.page.wait_for_timeout(500)
    chat.page.goto(house.house.url)
    assert LONG.startswith(chat.wait_ended("stopped"))
    expect(chat.answers.last).to_contain_text("nobody was there to read it")


def test_several_chats_answer_at_once_and_keep_apart(open_page: OpenPage, house: HouseThread) -> None:
    chat = open_chat(open_page, house)
    house.say_without_end("slowly ")
    chat.send("The slow one")
    chat.wait_for_text()
    chat.page.get_by_role("button", name="New chat").click()
    expect(chat.turns).to_have_count(0)
    house.say("Quick.")
    assert chat.ask("The quick one") == "Quick."
    running = chat.page.get_by_role("button", name="The slow one, is answering")
    running.click()
    chat.page.get_by_role("button", name="Stop").click()
    slow = chat.wait_ended("stopped")
    assert slow.startswith("slowly slowly") and "Quick" not in slow
    chat.page.reload()
    assert chat.text() == slow
    chat.page.get_by_role("navigation").get_by_role("button", name="The quick one", exact=True).click()
    assert chat.text() == "Quick."


def test_a_deleted_chat_is_gone_here_and_on_the_server(open_page: OpenPage, house: HouseThread) -> None:
    chat = open_chat(open_page, house)
    house.say("Remember me.")
    chat.ask("Something secret")
    [kept] = chat.kept()
    response_id = kept["turns"][0]["responseId"]
    row = chat.page.get_by_role("listitem").filter(has_text="Something secret").first
    row.hover()
    chat.page.get_by_role("button", name="Delete Something secret").click()
    chat.page.get_by_role("alertdialog").get_by_role("button", name="Keep it").click()
    assert len(chat.kept()) == 1
    chat.page.get_by_role("button", name="Delete Something secret").click()
    with chat.page.expect_response(lambda response: response.request.method == "DELETE") as deleted:
        chat.page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    assert deleted.value.status == 200
    assert chat.kept() == []
    expect(chat.turns).to_have_count(0)
    assert house.call(house.house.request("GET", f"/v1/responses/{response_id}")).status == 404
    assert house.house.engine.record.forgotten


def test_a_server_that_forgot_the_chat_is_told_it_again(open_page: OpenPage, house: HouseThread) -> None:
    chat = open_chat(open_page, house)
    chat.ask("Hello")
    [kept] = chat.kept()
    response_id = kept["turns"][0]["responseId"]
    house.call(house.house.request("DELETE", f"/v1/responses/{response_id}"))
    house.say("Still here.")
    assert chat.ask("And now?") == "Still here."
    assert "Hello" in house.prompts[-1]  # the page remembers what the server forgot
    chat.send("x" * 9000)
    chat.wait_ended("failed")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("8192")


def test_an_engine_that_dies_is_told_in_the_answer(
    open_page: OpenPage, make_house: Callable[..., HouseThread]
) -> None:
    house = make_house(step_s=0.01)
    chat = open_chat(open_page, house)
    house.say_without_end("tick ")
    chat.send("Count")
    chat.wait_for_text(10)
    house.run(house.house.engine.die, "killed by a test")
    chat.wait_ended("failed")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("engine")
    expect(chat.page.locator("#announcer")).to_contain_text("The answer failed")


def test_settings_go_with_every_message(open_page: OpenPage, house: HouseThread) -> None:
    page = open_page("about:blank")
    chat, wire = open_wired(page, house)
    chat.connected()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Speak like a sailor.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Longest answer, in tokens").fill("7")
    page.get_by_role("button", name="Save").click()
    house.say(LONG)
    chat.send("Hello")
    assert chat.wait_ended("cut") == LONG[:7]
    assert (wire.creates[0]["instructions"], wire.creates[0]["temperature"]) == ("Speak like a sailor.", 0.5)
    assert "Speak like a sailor." in house.prompts[-1]
    page.reload()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Temperature")).to_have_value("0.5")
    page.get_by_label("Temperature").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()  # the field says what is wrong


def test_coming_back_to_an_idle_chat_warms_it_up(open_page: OpenPage, house: HouseThread) -> None:
    page = open_page("about:blank")
    chat, wire = open_wired(page, house)
    chat.connected()
    chat.ask("Hello")
    [response_id] = [turn["responseId"] for turn in chat.kept()[0]["turns"]]
    chat.box.blur()
    chat.box.focus()
    assert len(wire.creates) == 1  # it is warm
    page.evaluate(
        "(id) => { const chat = JSON.parse(localStorage[id]); chat.turns[0].endedAt -= 60000;"
        " localStorage[id] = JSON.stringify(chat); }",
        f"tidegate.chat.{chat.kept()[0]['id']}",
    )
    page.get_by_role("button", name="Tide map").click()  # or it would see that all is on the device
    page.reload()
    chat.connected()
    chat.box.blur()
    chat.box.focus()
    expect(chat.turns).to_have_count(1)
    page.wait_for_timeout(100)
    warm = wire.creates[-1]
    assert (warm["generate"], warm["previous_response_id"]) == (False, response_id)
    chat.box.blur()
    chat.box.focus()
    house.call(until(lambda: house.house.engine.record.submitted[-1].sampling.max_tokens == 0))
    assert len(wire.creates) == 2  # once is enough


def test_another_tab_sees_what_is_said_here(open_page: OpenPage, house: HouseThread) -> None:
    chat = open_chat(open_page, house)
    other = Chat(chat.page.context.new_page())
    other.page.goto(house.house.url)
    house.say("Heard in both.")
    chat.ask("Hello from here")
    other.page.get_by_role("navigation").get_by_role("button", name="Hello from here", exact=True).click()
    assert other.text() == "Heard in both."


def two_tabs(open_page: OpenPage, house: HouseThread) -> tuple[Chat, Chat]:
    """Both with the same chat open; the second has just begun to answer in it, without an end."""
    chat = open_chat(open_page, house)
    house.say("Good day.")
    chat.ask("Hello")
    other = Chat(chat.page.context.new_page())
    other.page.goto(house.house.url)
    other.connected()
    other.page.get_by_role("navigation").get_by_role("button", name="Hello", exact=True).click()
    house.say_without_end("and so on ")
    other.send("Go on")
    other.wait_for_text(40)
    expect(chat.turns).to_have_count(2)
    return chat, other


def test_what_a_closed_tab_left_running_goes_on_in_another(open_page: OpenPage, house: HouseThread) -> None:
    chat, other = two_tabs(open_page, house)
    other.page.close()
    chat.wait_for_text(len(chat.text()) + 500)
    chat.page.get_by_role("button", name="Stop").click()
    chat.wait_ended("stopped")


def test_what_a_closed_tab_left_running_can_be_stopped_at_once(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat, other = two_tabs(open_page, house)
    other.page.close()
    chat.page.get_by_role("button", name="Stop").click()
    chat.wait_ended("stopped")


def test_a_chat_deleted_in_one_tab_does_not_come_back_from_another(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat, other = two_tabs(open_page, house)
    chat.page.get_by_role("button", name="Delete Hello").click()
    chat.page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(other.turns).to_have_count(0)
    other.page.wait_for_timeout(1000)  # it saves four times a second
    assert chat.kept() == []
    other.page.reload()
    expect(other.connected().turns).to_have_count(0)


def test_a_chat_saved_just_before_its_deletion_is_heard_of_does_not_come_back(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat, other = two_tabs(open_page, house)
    other.page.evaluate(
        "(name) => dispatchEvent(new StorageEvent('storage', { key: name, newValue: null }))",
        f"tidegate.chat.{other.kept()[0]['id']}",
    )
    expect(other.turns).to_have_count(0)
    expect(chat.turns).to_have_count(0)
    other.page.wait_for_timeout(500)  # it saved four times a second
    assert chat.kept() == []


def press_slowly(page: Page, button: Locator) -> None:
    """As a hand does it: what is saved four times a second is saved between its going down and up."""
    button.hover()
    page.mouse.down()
    page.wait_for_timeout(1000)
    page.mouse.up()


def test_what_is_clicked_while_another_tab_answers_is_clicked(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat, other = two_tabs(open_page, house)
    press_slowly(chat.page, chat.page.get_by_role("button", name="Delete Hello"))
    expect(chat.page.get_by_role("alertdialog")).to_be_visible()
    other.wait_for_text(len(other.text()) + 500)  # it is saved while the question stands
    chat.page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(chat.turns).to_have_count(0)
    expect(chat.page.get_by_role("button", name="Delete Hello")).to_have_count(0)
    expect(other.turns).to_have_count(0)
    assert chat.kept() == []


def test_what_is_being_edited_stays_while_another_tab_answers(
    open_page: OpenPage, house: HouseThread
) -> None:
    chat, other = two_tabs(open_page, house)
    chat.page.get_by_role("button", name="Edit this message and branch off").first.click()
    field = chat.page.get_by_role("textbox", name="Edit your message")
    field.fill("Hello again")
    chat.wait_for_text(len(chat.text()) + 500)
    expect(field).to_have_value("Hello again")
    expect(field).to_be_focused()
    other.page.get_by_role("button", name="Stop").click()
    other.wait_ended("stopped")


def test_branches_can_be_switched_while_an_answer_grows(open_page: OpenPage, house: HouseThread) -> None:
    chat = open_chat(open_page, house)
    house.say("First answer.")
    chat.ask("Hello")
    house.say_without_end("and so on ")
    chat.page.get_by_role("button", name="Again").click()
    chat.wait_for_text(40)
    step = chat.page.get_by_role("button", name="Previous branch")
    step.focus()
    chat.wait_for_text(len(chat.text()) + 500)
    expect(step).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(chat.answers.last.locator(".prose")).to_have_text("First answer.")
    chat.page.get_by_role("button", name="Next branch").click()
    chat.page.get_by_role("button", name="Stop").click()
    chat.wait_ended("stopped")
