// The chats of this browser at the side.

import { el, iconButton } from "/web/dom.js";

const DAY_MS = 86_400_000;

/** `on.open(chat)` and `on.delete(chat)`. What stands there stays: the list is shown anew while it is being clicked. */
export class ChatList {
  #rows = new Map(); // by chat
  #ages = new Map(); // headings by what they say

  constructor(list, on) {
    this.list = list;
    this.on = on;
  }

  show(chats, current) {
    const shown = new Set(chats.filter((chat) => chat.turns.size));
    const elements = [];
    const ages = new Set();
    for (const chat of shown) {
      const age = ageOf(chat.updatedAt);
      if (!ages.has(age)) elements.push(this.#heading(age));
      ages.add(age);
      const row = this.#rowOf(chat);
      row.update(chat === current);
      elements.push(row.element);
    }
    for (const chat of [...this.#rows.keys()]) if (!shown.has(chat)) this.#rows.delete(chat);
    place(this.list, elements);
  }

  #heading(age) {
    if (!this.#ages.has(age)) this.#ages.set(age, el("li", { className: "age" }, age));
    return this.#ages.get(age);
  }

  #rowOf(chat) {
    if (!this.#rows.has(chat)) this.#rows.set(chat, new Row(chat, this.on));
    return this.#rows.get(chat);
  }
}

class Row {
  #name = null;

  constructor(chat, on) {
    this.chat = chat;
    this.name = el("span");
    this.running = el("i", { className: "running" });
    this.open = el("button", { type: "button", className: "open-chat", on: { click: () => on.open(chat) } }, this.name);
    this.remove = iconButton("trash", "", () => on.delete(chat));
    this.element = el("li", { className: "chat-row", data: { chat: chat.id } }, this.open, this.remove);
  }

  update(isCurrent) {
    this.#showName(this.chat.name);
    if (isCurrent) this.open.setAttribute("aria-current", "page");
    else this.open.removeAttribute("aria-current");
    if (this.chat.answering.length) {
      if (!this.running.isConnected) this.open.append(this.running);
      this.open.setAttribute("aria-label", `${this.chat.name}, is answering`);
    } else {
      this.running.remove();
      this.open.removeAttribute("aria-label");
    }
  }

  #showName(name) {
    if (name === this.#name) return;
    this.#name = name;
    this.name.textContent = name;
    this.open.title = name;
    this.remove.title = `Delete ${name}`;
    this.remove.setAttribute("aria-label", this.remove.title);
  }
}

/** Make these the children of the list. What stands where it should is not touched, and what is moved keeps the focus. */
function place(list, elements) {
  const focused = document.activeElement;
  const wanted = new Set(elements);
  for (const child of [...list.children]) if (!wanted.has(child)) child.remove();
  let next = list.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else list.insertBefore(element, next);
  }
  if (list.contains(focused)) focused.focus({ preventScroll: true });
}

function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  if (time >= midnight - 7 * DAY_MS) return "This week";
  return "Older";
}
