// The chats of this browser at the side.

import { RUNNING } from "/web/chats.js";
import { el, iconButton } from "/web/dom.js";

const DAY_MS = 86_400_000;

/** `on.open(chat)` and `on.delete(chat)`. */
export class ChatList {
  constructor(list, on) {
    this.list = list;
    this.on = on;
  }

  show(chats, current) {
    const focused = document.activeElement?.closest?.("[data-chat]")?.dataset.chat;
    const rows = [];
    let group = "";
    for (const chat of chats.filter((one) => one.turns.size)) {
      const age = ageOf(chat.updatedAt);
      if (age !== group) rows.push(el("li", { className: "age" }, (group = age)));
      rows.push(this.#row(chat, chat === current));
    }
    this.list.replaceChildren(...rows);
    if (focused) this.list.querySelector(`[data-chat="${CSS.escape(focused)}"] .open-chat`)?.focus();
  }

  #row(chat, isCurrent) {
    const isRunning = [...chat.turns.values()].some((turn) => RUNNING.has(turn.status));
    const open = el("button", { type: "button", className: "open-chat", title: chat.name, on: { click: () => this.on.open(chat) } }, el("span", {}, chat.name));
    if (isCurrent) open.setAttribute("aria-current", "page");
    if (isRunning) {
      open.append(el("i", { className: "running" }));
      open.setAttribute("aria-label", `${chat.name}, is answering`);
    }
    const remove = iconButton("trash", `Delete ${chat.name}`, () => this.on.delete(chat));
    return el("li", { className: "chat-row", data: { chat: chat.id } }, open, remove);
  }
}

function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  if (time >= midnight - 7 * DAY_MS) return "This week";
  return "Older";
}
