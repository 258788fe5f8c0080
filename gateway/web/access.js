// Who we are to the server: the key, which may be kept, and HTTP calls with it. A WebSocket cannot carry a
// header of ours, so for each one the key is exchanged for a ticket that is good once.

const KEY = "tidegate.key";

export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Access {
  #key;

  constructor() {
    this.#key = read(sessionStorage) ?? read(localStorage) ?? "";
  }

  get hasKey() {
    return this.#key !== "";
  }

  /** Kept for this tab, or with `remember` until it is forgotten. */
  use(key, remember) {
    this.forget();
    this.#key = key;
    try {
      (remember ? localStorage : sessionStorage).setItem(KEY, key);
    } catch {
      // good until the page is closed
    }
  }

  forget() {
    this.#key = "";
    for (const storage of [sessionStorage, localStorage]) {
      try {
        storage.removeItem(KEY);
      } catch {
        // nothing was kept there
      }
    }
  }

  /** Raises HttpError for what is no success, TypeError if the server cannot be reached. */
  async fetch(path, options = {}) {
    const headers = new Headers(options.headers);
    if (this.#key) headers.set("Authorization", `Bearer ${inHeader(this.#key)}`);
    const answer = await fetch(path, { cache: "no-store", ...options, headers });
    if (!answer.ok) throw new HttpError(answer.status, await reason(answer));
    return answer;
  }

  /** Where to open a WebSocket, once. */
  async socketUrl(path) {
    const url = new URL(path, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    if (this.hasKey) {
      const answer = await this.fetch("/v1/tickets", { method: "POST" });
      url.searchParams.set("ticket", (await answer.json()).ticket);
    }
    return url.href;
  }
}

/** Whatever characters it has: a header takes bytes, one to each character. */
const inHeader = (text) => String.fromCharCode(...new TextEncoder().encode(text));

function read(storage) {
  try {
    return storage.getItem(KEY);
  } catch {
    return null;
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}
