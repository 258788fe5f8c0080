// Puts the page together: the chat that is shown, what the user does, and what becomes of it.

import { Access, HttpError } from "/web/access.js";
import { ChatList } from "/web/chat_list.js";
import { Chats } from "/web/chats.js";
import { Connection } from "/web/connection.js";
import { Conversation } from "/web/conversation.js";
import { $, el } from "/web/dom.js";
import { Panels } from "/web/panels.js";
import { Runs } from "/web/runs.js";
import { Settings } from "/web/settings.js";
import { TideFeed } from "/web/tide_feed.js";
import { TideMap } from "/web/tide_map.js";

const LAST_CHAT = "tidegate.last-chat"; // of this tab
const SILENT_MS = 5_000; // another tab that answers says so several times a second
const UNSENT_MS = 65_000; // what it has not got through until then it does not send any more
const STARTERS = ["Explain what a KV cache is, to a child.", "Write a haiku about the tide.", "Show me a Python function that reverses a list."];

const access = new Access();
const settings = new Settings();
const chats = new Chats(tell);
const conversation = new Conversation($("turns"), $("scroll"), $("to-end"), { edit, again, choose });
const list = new ChatList($("chat-list"), { open, delete: askToDelete });
const runs = new Runs(access, chats, settings, { changed, ended, trouble: tell });
const connection = new Connection(access, { state: showLink, open: connected, event: (event) => runs.take(event) });
const map = new TideMap(
  { figures: $("figures"), tiers: $("tiers"), legend: $("legend"), sessions: $("sessions"), empty: $("tide-empty") },
  { nameOf: (response) => chatOf(response)?.name, open: (response) => open(chatOf(response)) },
);
const feed = new TideFeed(access, { snapshot: (snapshot) => map.show(snapshot), state: showFeed });
const panels = new Panels({ settings, access, feed, onKey: enter, onNewChat: newChat, onStep: stepChat, onStop: stop, onForgetKey: forgetKey });
runs.connection = connection;

let current = null;

// ---- coming in -----------------------------------------------------------------------------------

/** With the key that there is; asks for one if that is not good enough. */
async function enter() {
  showLink("connecting");
  try {
    const models = (await (await access.fetch("/v1/models")).json()).data.map((model) => model.id);
    if (!models.includes(settings.model)) settings.model = "";
    panels.showModels(models);
    $("model").textContent = settings.model || models[0];
  } catch (error) {
    if (error instanceof HttpError && error.status === 401) {
      showLink("refused", access.hasKey ? "The server does not know this key." : "");
      return;
    }
    // what cannot be reached now is tried again by the connection
  }
  connection.connect();
  panels.watchTide();
}

function connected() {
  runs.resumeAll();
  for (const id of chats.toDelete) deleteResponse(id);
}

function forgetKey() {
  access.forget();
  location.reload();
}

// ---- chats ---------------------------------------------------------------------------------------

function open(chat) {
  if (!chat) return;
  current = chat;
  try {
    sessionStorage.setItem(LAST_CHAT, chat.id);
  } catch {
    // the newest is shown after a reload
  }
  showAll();
  panels.closeChats();
  if (!panels.isTouch) $("composer").focus();
}

function newChat() {
  open(chats.list.find((chat) => !chat.turns.size) ?? chats.create());
  $("composer").focus();
}

function stepChat(step) {
  const shown = chats.list.filter((chat) => chat.turns.size);
  const place = shown.indexOf(current);
  open(shown[place < 0 ? 0 : place + step]);
}

async function askToDelete(chat) {
  if (!(await panels.confirmDelete()) || !chats.has(chat)) return;
  runs.drop(chat);
  chats.delete(chat);
  for (const id of chat.responseIds) deleteResponse(id);
  if (chat === current) newChat();
  else showAll();
}

/** Once it is gone from the server it is noted no more; until then it is tried at every connection. */
async function deleteResponse(id) {
  try {
    await access.fetch(`/v1/responses/${encodeURIComponent(id)}`, { method: "DELETE" });
    chats.deleted(id);
  } catch (error) {
    if (error instanceof HttpError && error.status === 404) chats.deleted(id);
  }
}

/** The chat that a row of the map is of; rows have the beginning of an id. */
function chatOf(response) {
  return chats.list.find((chat) => chat.responseIds.some((id) => id.startsWith(response)));
}

// ---- turns ---------------------------------------------------------------------------------------

function send(text) {
  const last = current.path().at(-1);
  begin(last?.id ?? null, text);
}

function edit(turn, text) {
  begin(turn.parent, text);
}

/** Another answer to the same message: a branch, or in place of one that never began. */
function again(turn) {
  if (turn.status === "failed" && !turn.answer) current.turns.delete(turn.id);
  begin(turn.parent, turn.text);
}

function begin(parent, text) {
  runs.start(current, current.add(parent, text));
  showAll();
  conversation.scrollToEnd();
}

function choose(turn, direction) {
  if (!turn) return;
  current.choose(turn);
  chats.save(current);
  showAll();
  const steps = [...$("turns").querySelectorAll(".branches")][current.path().indexOf(turn)];
  const same = steps?.querySelector(`[data-step="${direction}"]`);
  (same?.disabled ? steps.querySelector("button:not(:disabled)") : same)?.focus();
}

function stop() {
  const turn = current?.running;
  if (!turn) return false;
  if (turn.responseId) runs.adopt(current); // another tab may have begun it
  runs.stop(turn);
  return true;
}

function changed(chat, turn) {
  if (chat === current) {
    conversation.update(turn);
    showComposer();
  }
}

function ended(chat, turn) {
  if (chat === current) {
    conversation.update(turn);
    const told = { failed: `The answer failed: ${turn.error}`, stopped: "Answer stopped." }[turn.status];
    $("announcer").textContent = told ?? `Answer: ${turn.answer}`;
  }
  showAll();
}

// ---- what is shown -------------------------------------------------------------------------------

function showAll() {
  conversation.show(current);
  $("title").textContent = current.name;
  document.title = current.title ? `${current.title} – tidegate` : "tidegate";
  $("welcome").hidden = current.turns.size > 0;
  list.show(chats.list, current);
  map.rename();
  showComposer();
}

function showComposer() {
  const isRunning = Boolean(current.running);
  const hadFocus = document.activeElement === $("stop");
  $("stop").hidden = !isRunning;
  $("send").hidden = isRunning;
  $("send").disabled = isRunning || $("composer").value.trim() === "";
  if (hadFocus && !isRunning) $("composer").focus();
}

function showLink(state, detail) {
  if (state === "refused") panels.askForKey(detail);
  const words = { connecting: "Connecting", open: "Connected", waiting: "Reconnecting", asleep: "Asleep", refused: "Key needed" };
  $("link").dataset.state = state;
  $("link").title = detail ?? "";
  if ($("link").textContent !== words[state]) $("link").textContent = words[state];
}

function showFeed(state) {
  const words = { off: "Off", connecting: "Connecting", live: "Live", lost: "Reconnecting", none: "Not offered" };
  $("feed").dataset.state = state;
  if ($("feed").textContent !== words[state]) $("feed").textContent = words[state];
}

function tell(sentence) {
  $("notice-text").textContent = sentence;
  $("notice").hidden = false;
}

// ---- what the user does --------------------------------------------------------------------------

const composer = $("composer");

function fitComposer() {
  composer.style.height = "auto";
  composer.style.height = `${composer.scrollHeight}px`;
}

composer.addEventListener("input", () => {
  fitComposer();
  showComposer();
});
composer.addEventListener("focus", () => {
  if ($("link").dataset.state === "refused") return enter();
  connection.wake();
  const last = current?.path().at(-1)?.responseId;
  const cells = last && map.cellsOf(last);
  if (!cells || /[^Dd]/.test(cells)) runs.prewarm(current); // what is on the device is warm
});
composer.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  } else if (event.key === "ArrowUp" && composer.value === "" && conversation.editLast()) event.preventDefault();
});
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = composer.value.trim();
  if (!text || current.running) return;
  composer.value = "";
  fitComposer();
  $("notice").hidden = true;
  send(text);
});
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", newChat);
$("notice-close").addEventListener("click", () => ($("notice").hidden = true));
$("starters").append(...STARTERS.map((text) => el("button", { type: "button", on: { click: () => send(text) } }, text)));

// ---- other tabs ----------------------------------------------------------------------------------

const watches = new Map(); // timers by chat, while another tab answers in it

/** What another tab answers is taken up here when nothing more is heard of it: that tab was closed. */
function watch(chat) {
  clearTimeout(watches.get(chat.id));
  watches.delete(chat.id);
  if (!chat.answering.length) return;
  const waitMs = chat.answering.every((turn) => turn.responseId) ? SILENT_MS : UNSENT_MS;
  watches.set(chat.id, setTimeout(() => takeUp(chat), waitMs));
}

function takeUp(chat) {
  if (!chats.has(chat)) return;
  runs.adopt(chat);
  showAll();
}

addEventListener("storage", (event) => {
  const known = event.key && chats.all.get(event.key.slice("tidegate.chat.".length));
  if (known && runs.follows(known)) {
    if (event.newValue !== null) return; // this tab knows more
    runs.drop(known);
  }
  const chat = chats.changedElsewhere(event.key, event.newValue === null);
  if (chat === null) return;
  if (chat) watch(chat);
  else if (known === current) current = chats.create();
  showAll();
});

for (const chat of chats.list) runs.adopt(chat);
open(chats.all.get(sessionStorage.getItem(LAST_CHAT)) ?? chats.create());
enter();
