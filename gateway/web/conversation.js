// The turns of one chat as they are read: messages, answers as they grow, and what can be done with each.

import { RUNNING } from "/web/chats.js";
import { copyButton, count, duration, el, icon, iconButton } from "/web/dom.js";
import { MarkdownView } from "/web/markdown.js";

const NEAR_END_PX = 80;
const LEAVING_MS = 300; // what scrolls in this time after a turn of the wheel is not our following
const MAX_RENDER_SHARE = 0.25; // of the time, at most, goes into showing text that grows

/** `on.edit(turn, text)`, `on.again(turn)`, `on.choose(turn)` are what the user asks for. */
export class Conversation {
  #views = new Map(); // by turn
  #chat = null;
  #following = true;
  #top = 0;
  #leftAt = -Infinity;

  constructor(list, scroller, toEnd, on) {
    this.list = list;
    this.scroller = scroller;
    this.toEnd = toEnd;
    this.on = on;
    scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this.#leave(), { passive: true });
    toEnd.addEventListener("click", () => this.scrollToEnd());
  }

  /** Show a chat from the beginning, or what has changed in it. */
  show(chat) {
    const isOther = chat !== this.#chat;
    this.#chat = chat;
    const path = chat.path();
    if (isOther) this.#clear(new Set());
    else this.#clear(new Set(path));
    path.forEach((turn, place) => {
      let view = this.#views.get(turn);
      if (!view) {
        view = new TurnView(turn, this.on);
        this.#views.set(turn, view);
      }
      if (this.list.children[place] !== view.element) this.list.insertBefore(view.element, this.list.children[place] ?? null);
      view.update(chat);
    });
    if (isOther) this.#following = true;
    this.#follow();
  }

  /** One turn of the chat that is shown has changed. */
  update(turn) {
    this.#views.get(turn)?.update(this.#chat, () => this.#follow());
  }

  /** Edit the last message. Returns whether there is one. */
  editLast() {
    const last = this.#chat?.path().at(-1);
    if (!last || RUNNING.has(last.status)) return false;
    this.#views.get(last).edit();
    return true;
  }

  scrollToEnd() {
    this.#following = true;
    this.#leftAt = -Infinity;
    this.#follow();
  }

  #clear(kept) {
    for (const [turn, view] of this.#views) {
      if (kept.has(turn)) continue;
      view.close();
      this.#views.delete(turn);
    }
  }

  /** Up is away from the end, for it is never we who scroll up; down to the end is back to it. */
  #noteScroll() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    if (scrollTop < this.#top - 1) this.#following = false;
    else if (isAtEnd && performance.now() - this.#leftAt > LEAVING_MS) this.#following = true;
    this.#top = scrollTop;
    this.toEnd.hidden = isAtEnd;
  }

  #leave() {
    this.#following = false;
    this.#leftAt = performance.now();
  }

  #follow() {
    if (this.#following) this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}

class TurnView {
  #timer = 0;
  #shown = null; // text of the answer as it stands there
  #notBefore = 0;
  #branches = []; // as they stand there

  constructor(turn, on) {
    this.turn = turn;
    this.on = on;
    this.message = el("div", { className: "message-text" }, turn.text);
    this.branches = el("div", { className: "branches", hidden: true });
    this.editButton = iconButton("edit", "Edit this message and branch off", () => this.edit());
    this.question = el(
      "article",
      { className: "message", aria: { label: "Your message" } },
      this.message,
      el("div", { className: "under" }, this.branches, this.editButton),
    );
    this.thought = el("details", { className: "thought", hidden: true }, el("summary", {}, "Thoughts"), el("div", { className: "thought-text" }));
    this.text = el("div", { className: "prose" });
    this.markdown = new MarkdownView(this.text);
    this.waiting = el("p", { className: "waiting" }, el("span", { className: "dots", aria: { hidden: "true" } }, el("i"), el("i"), el("i")), el("span", { className: "unseen" }, "Waiting for the answer"));
    this.trouble = el("p", { className: "trouble", hidden: true });
    this.facts = el("span", { className: "facts" });
    this.tools = el("div", { className: "under", hidden: true }, copyButton(() => turn.answer), this.againButton(), this.facts);
    this.answer = el("article", { className: "answer", aria: { label: "Answer" } }, this.thought, this.text, this.waiting, this.trouble, this.tools);
    this.element = el("li", { className: "turn" }, this.question, this.answer);
  }

  againButton() {
    return el("button", { type: "button", className: "copy", on: { click: () => this.on.again(this.turn) } }, icon("again"), el("span", {}, "Again"));
  }

  update(chat, onShown = () => {}) {
    const { turn } = this;
    const isRunning = RUNNING.has(turn.status);
    this.answer.setAttribute("aria-busy", String(isRunning));
    this.element.dataset.status = turn.status;
    if (isRunning && this.#shown !== null) this.#showSoon(onShown);
    else {
      this.#show();
      onShown();
    }
    this.waiting.hidden = !isRunning || turn.answer !== "";
    this.tools.hidden = isRunning;
    this.editButton.hidden = isRunning;
    this.#updateTrouble();
    this.facts.textContent = facts(turn);
    this.#updateBranches(chat.branches(turn.parent));
  }

  /** The text as an element that can be changed; what comes of it is a branch. */
  edit() {
    if (this.editor) return;
    const field = el("textarea", { value: this.turn.text, rows: 1, className: "edit-text", aria: { label: "Edit your message" } });
    const close = () => {
      this.editor.remove();
      this.editor = null;
      this.question.classList.remove("editing");
      this.editButton.focus();
    };
    const send = () => {
      const text = field.value.trim();
      close();
      if (text) this.on.edit(this.turn, text);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.editor = el(
      "div",
      { className: "editor" },
      field,
      el(
        "div",
        { className: "editor-buttons" },
        el("button", { type: "button", className: "plain", on: { click: close } }, "Cancel"),
        el("button", { type: "button", className: "primary", on: { click: send } }, "Send as a branch"),
      ),
    );
    this.question.classList.add("editing");
    this.question.prepend(this.editor);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  close() {
    clearTimeout(this.#timer);
    this.element.remove();
  }

  /** At once if there is time for it; a long text is shown less often. */
  #showSoon(onShown) {
    if (this.#timer) return;
    const waitMs = Math.max(16, this.#notBefore - performance.now());
    this.#timer = setTimeout(() => {
      this.#show();
      onShown();
    }, waitMs);
  }

  #show() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const { answer, thought } = this.turn;
    this.thought.hidden = thought === "";
    if (thought) this.thought.lastChild.textContent = thought;
    if (answer === this.#shown) return;
    const startedAt = performance.now();
    this.markdown.show(answer);
    this.#shown = answer;
    const now = performance.now();
    this.#notBefore = now + (now - startedAt) / MAX_RENDER_SHARE;
  }

  #updateTrouble() {
    const { status, error } = this.turn;
    const told = { failed: error ?? "The answer failed.", stopped: error ?? "Stopped.", cut: "Cut: this is as long as an answer may be here." }[status];
    this.trouble.hidden = !told;
    this.trouble.textContent = told ?? "";
    this.trouble.classList.toggle("is-error", status === "failed");
  }

  #updateBranches(branches) {
    if (branches.length === this.#branches.length && branches.every((branch, place) => branch === this.#branches[place])) return;
    this.#branches = branches;
    this.branches.hidden = branches.length < 2;
    if (this.branches.hidden) return;
    const place = branches.indexOf(this.turn);
    const step = (name, label, to) => {
      const button = iconButton(name, label, () => this.on.choose(to, name));
      button.disabled = !to;
      button.dataset.step = name;
      return button;
    };
    this.branches.replaceChildren(
      step("left", "Previous branch", branches[place - 1]),
      el("span", { aria: { label: `Branch ${place + 1} of ${branches.length}` } }, `${place + 1} / ${branches.length}`),
      step("right", "Next branch", branches[place + 1]),
    );
    this.branches.lastChild.previousSibling.setAttribute("role", "img");
  }
}

/** What is known of how it went: the pace, the wait, and what was found in the cache. */
function facts(turn) {
  const parts = [];
  if (turn.tokensPerS) parts.push(`${turn.tokensPerS.toFixed(1)} tokens/s`);
  if (turn.ttftMs) parts.push(`first after ${duration(turn.ttftMs)}`);
  if (turn.usage) {
    const cached = turn.usage.input_tokens_details?.cached_tokens ?? 0;
    parts.push(`${count(turn.usage.input_tokens)} in${cached ? `, ${count(cached)} of them cached` : ""}`, `${count(turn.usage.output_tokens)} out`);
  }
  return parts.join(" · ");
}
