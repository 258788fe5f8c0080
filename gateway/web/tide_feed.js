// The feed of the tide map: server-sent events, read with fetch because they need the key in a header. It runs
// while somebody watches: the map is open and the page is seen.

import { HttpError } from "/web/access.js";

const WAIT_MS = 2_000;

/** `on.snapshot(snapshot)`; `on.state(state)`: off, connecting, live, lost, or none where there is no feed. */
export class TideFeed {
  #abort = null;
  #wanted = false;
  #timer = 0;

  constructor(access, on) {
    this.access = access;
    this.on = on;
    document.addEventListener("visibilitychange", () => this.#adjust());
  }

  watch(wanted) {
    this.#wanted = wanted;
    this.#adjust();
  }

  #adjust() {
    if (this.#wanted && !document.hidden) {
      if (!this.#abort) this.#follow();
    } else this.#leave();
  }

  #leave() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
    this.on.state("off");
  }

  async #follow() {
    clearTimeout(this.#timer);
    const abort = (this.#abort = new AbortController());
    this.on.state("connecting");
    let state = "lost";
    try {
      const answer = await this.access.fetch("/v1/tide", { signal: abort.signal });
      await this.#read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch (error) {
      if (error instanceof HttpError && error.status === 404) state = "none";
    }
    if (abort.signal.aborted) return;
    this.#abort = null;
    this.on.state(state);
    if (state === "lost") this.#timer = setTimeout(() => this.#adjust(), WAIT_MS);
  }

  async #read(reader) {
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        this.on.state("live");
        this.on.snapshot(JSON.parse(event.slice(6)));
      }
    }
  }
}
