// One WebSocket to /v1/responses that is there again when it breaks. What it carries is `runs.js`'s.

import { HttpError } from "/web/access.js";

const FIRST_WAIT_MS = 250;
const MAX_WAIT_MS = 10_000;
const PROVEN_MS = 5_000; // open for so long, a connection was a good one
const KEY_REVOKED = 4401;
const IDLE = 4408; // nothing was asked of it: opened again when something is

/**
 * `on.state(state, detail)`: connecting, open, waiting (for the next try; detail: what went wrong,
 * if that is known), asleep, refused (detail: a sentence; a key is needed). `on.open()` and `on.event(event)` as they say.
 */
export class Connection {
  #socket = null;
  #timer = 0;
  #isAsleep = false;
  #attempt = 0; // numbers tries, so that a late one is known as such
  #waitMs = FIRST_WAIT_MS;
  #openedAt = 0;

  constructor(access, on) {
    this.access = access;
    this.on = on;
    addEventListener("online", () => this.wake());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
    addEventListener("pageshow", (event) => event.persisted && this.wake());
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /** Open it, dropping what there is. */
  async connect() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#isAsleep = false;
    const attempt = ++this.#attempt;
    this.#drop();
    this.on.state("connecting");
    try {
      const url = await this.access.socketUrl("/v1/responses");
      if (attempt !== this.#attempt) return;
      this.#listen(new WebSocket(url));
    } catch (error) {
      if (attempt !== this.#attempt) return;
      if (error instanceof HttpError && error.status === 401) this.on.state("refused", error.message);
      else this.#retry(error.message);
    }
  }

  /** Goes out if it is open; what has to be said again after a break is said again by `on.open`. */
  send(event) {
    if (this.isOpen) this.#socket.send(JSON.stringify(event));
    else this.wake();
  }

  #listen(socket) {
    this.#socket = socket;
    socket.addEventListener("open", () => {
      this.#openedAt = performance.now();
      this.on.state("open");
      this.on.open();
    });
    socket.addEventListener("message", (message) => {
      if (socket !== this.#socket) return;
      const event = JSON.parse(message.data);
      if ("sequence_number" in event) this.#waitMs = FIRST_WAIT_MS; // it got us on, however short it lasts
      this.on.event(event);
    });
    socket.addEventListener("close", ({ code, reason }) => {
      if (socket !== this.#socket) return;
      this.#socket = null;
      if (code === KEY_REVOKED) return this.on.state("refused", reason);
      if (code === IDLE) return this.#sleep();
      if (this.#openedAt && performance.now() - this.#openedAt > PROVEN_MS) this.#waitMs = FIRST_WAIT_MS;
      this.#openedAt = 0;
      this.#retry();
    });
  }

  #retry(reason = "") {
    const waitMs = this.#waitMs * (0.75 + Math.random() / 2);
    this.#waitMs = Math.min(this.#waitMs * 2, MAX_WAIT_MS);
    this.on.state("waiting", reason);
    this.#timer = setTimeout(() => this.connect(), waitMs);
  }

  #sleep() {
    this.#isAsleep = true;
    this.on.state("asleep");
  }

  /** Open it now if it is to be open. */
  wake() {
    if (this.#timer || this.#isAsleep) this.connect();
  }

  #drop() {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }
}
