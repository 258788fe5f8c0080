// What was said, kept in this browser: chats, each a tree of turns. A turn is one message with its answer;
// turns with the same parent are branches of each other. Every chat is one entry of localStorage, so that two
// tabs do not overwrite each other's chats.

const PREFIX = "tidegate.chat.";
const DELETED = "tidegate.deleted";
const ROOT = "root";
const MAX_TITLE = 60;

export const RUNNING = new Set(["sending", "streaming"]);

const COUNTS = new Set(["done", "cut"]); // whose responses the server lets another follow

const message = (role, content) => ({ type: "message", role, content });

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");

export class Chat {
  constructor(saved = {}) {
    this.id = saved.id ?? newId();
    this.turns = new Map();
    this.take(saved);
  }

  /** Become what was saved. Turns that were there before stay the same objects: whoever shows them goes on doing so. */
  take(saved) {
    this.turns = new Map((saved.turns ?? []).map((turn) => [turn.id, become(this.turns.get(turn.id), turn)]));
    this.title = saved.title ?? "";
    this.updatedAt = saved.updatedAt ?? Date.now();
    this.chosen = saved.chosen ?? {}; // turn that is shown, by parent
  }

  get name() {
    return this.title || "New chat";
  }

  /** Turns with the same parent, in the order in which they were made. */
  branches(parent) {
    return [...this.turns.values()].filter((turn) => turn.parent === parent);
  }

  /** The turns that are shown, from the first on. */
  path() {
    const shown = [];
    for (let parent = null; ; ) {
      const branches = this.branches(parent);
      const turn = branches.find((branch) => branch.id === this.chosen[parent ?? ROOT]) ?? branches.at(-1);
      if (!turn) return shown;
      shown.push(turn);
      parent = turn.id;
    }
  }

  choose(turn) {
    this.chosen[turn.parent ?? ROOT] = turn.id;
  }

  add(parent, text) {
    const turn = { id: newId(), parent, text, answer: "", thought: "", status: "sending", responseId: null, sequence: -1, createdAt: Date.now() };
    this.turns.set(turn.id, turn);
    this.choose(turn);
    if (!this.title) this.title = titleOf(text);
    this.updatedAt = turn.createdAt;
    return turn;
  }

  /**
   * What a turn builds on: the last response before it that counts, and what was said since then. A response
   * that was stopped or failed does not count for the server, and what was read of it is sent along instead.
   * With `whole` all that was said is, for a server that has forgotten the chat.
   */
  before(turn, whole) {
    const said = [];
    for (let one = this.turns.get(turn.parent); one; one = this.turns.get(one.parent)) {
      if (!whole && one.responseId && COUNTS.has(one.status)) return { responseId: one.responseId, said };
      if (one.answer) said.unshift(message("user", one.text), message("assistant", one.answer));
    }
    return { responseId: null, said };
  }

  /** On any branch. */
  get answering() {
    return [...this.turns.values()].filter((turn) => RUNNING.has(turn.status));
  }

  /** Of those that are shown. */
  get running() {
    return this.path().find((turn) => RUNNING.has(turn.status));
  }

  get responseIds() {
    return [...this.turns.values()].map((turn) => turn.responseId).filter(Boolean);
  }

  toJSON() {
    return { id: this.id, title: this.title, updatedAt: this.updatedAt, turns: [...this.turns.values()], chosen: this.chosen };
  }
}

function become(known, saved) {
  if (!known) return saved;
  for (const name of Object.keys(known)) if (!(name in saved)) delete known[name];
  return Object.assign(known, saved);
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}

/** All chats of this browser. `onTrouble` is told a sentence when they cannot be kept. */
export class Chats {
  constructor(onTrouble) {
    this.onTrouble = onTrouble;
    this.all = new Map();
    this.unsaved = new Map(); // timers by chat
    for (const name of Object.keys(storage() ?? {})) {
      if (name.startsWith(PREFIX)) this.load(name);
    }
    addEventListener("pagehide", () => this.flush());
  }

  /** The newest first. */
  get list() {
    return [...this.all.values()].sort((a, b) => b.updatedAt - a.updatedAt);
  }

  /** Whether it is (still) one of them. */
  has(chat) {
    return this.all.get(chat.id) === chat;
  }

  create() {
    const chat = new Chat();
    this.all.set(chat.id, chat);
    return chat;
  }

  /** Keep it now, or if it changes with every token, soon: text and number always go together. */
  save(chat, soon = false) {
    if (soon) {
      if (!this.unsaved.has(chat.id)) this.unsaved.set(chat.id, setTimeout(() => this.save(chat), 250));
      return;
    }
    clearTimeout(this.unsaved.get(chat.id));
    this.unsaved.delete(chat.id);
    if (!chat.turns.size || !this.all.has(chat.id)) return;
    try {
      localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
    } catch {
      this.onTrouble("This browser keeps no more: delete old chats, or what you write now is lost when the page closes.");
    }
  }

  flush() {
    for (const id of [...this.unsaved.keys()]) this.save(this.all.get(id));
  }

  /** Gone from here; what the server has of it is noted until it is gone there too. */
  delete(chat) {
    this.#forget(chat.id);
    storage()?.removeItem(PREFIX + chat.id);
    this.#note([...this.toDelete, ...chat.responseIds]);
  }

  /** Responses that the server still has to delete. */
  get toDelete() {
    try {
      return JSON.parse(localStorage.getItem(DELETED) ?? "[]");
    } catch {
      return [];
    }
  }

  deleted(responseId) {
    this.#note(this.toDelete.filter((id) => id !== responseId));
  }

  /** Another tab changed an entry, or removed it. Returns the chat, or undefined if it is gone; null if it was no chat. */
  changedElsewhere(name, isRemoved) {
    if (!name?.startsWith(PREFIX)) return null;
    if (isRemoved) storage()?.removeItem(name); // this tab may have saved it before it heard of that
    return this.load(name);
  }

  load(name) {
    const id = name.slice(PREFIX.length);
    try {
      const saved = JSON.parse(localStorage.getItem(name) ?? "null");
      if (saved?.id !== id) throw new Error("not a chat");
      const chat = this.all.get(id) ?? new Chat({ id });
      chat.take(saved);
      this.all.set(id, chat);
      return chat;
    } catch {
      this.#forget(id);
      return undefined;
    }
  }

  #forget(id) {
    clearTimeout(this.unsaved.get(id));
    this.unsaved.delete(id);
    this.all.delete(id);
  }

  #note(ids) {
    try {
      if (ids.length) localStorage.setItem(DELETED, JSON.stringify(ids));
      else localStorage.removeItem(DELETED);
    } catch {
      // the server's own expiry deletes them
    }
  }
}

function storage() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}
