// The tide map: each session's KV blocks as cells on three levels. A block that moves between device, host and
// disk is seen to sink or rise.

import { bytes, count, duration, el } from "/web/dom.js";

const KINDS = {
  D: { name: "device, in use", level: 0, kind: "use" },
  d: { name: "device, cached", level: 0, kind: "cached" },
  "<": { name: "moving up", level: 0.5, kind: "up" },
  ">": { name: "moving down", level: 0.5, kind: "down" },
  h: { name: "host memory", level: 1, kind: "host" },
  k: { name: "disk", level: 2, kind: "disk" },
  "-": { name: "gone", level: 2.6, kind: "gone" },
};
const HIT_KINDS = { device: "cached", host: "host", disk: "disk" };
const MAX_COLUMNS = 64;
const LEVEL_PX = 13;
const HISTORY = 60; // snapshots in the curve
const NOTHING = "–";

export class TideMap {
  #rows = new Map(); // by session
  #figures = new Map();
  #pace = [];

  /** `nameOf(response)` finds the title of one of our chats, `open(response)` shows it. */
  constructor(parts, { nameOf, open }) {
    this.parts = parts;
    this.nameOf = nameOf;
    this.open = open;
    for (const { name, kind } of Object.values(KINDS)) {
      parts.legend.append(el("li", {}, el("i", { className: "swatch", data: { kind }, aria: { hidden: "true" } }), name));
    }
    for (const [id, label] of [["pace", "tokens/s"], ["ttft", "first token"], ["queue", "running, waiting"], ["up", "moving up"], ["down", "moving down"], ["hits", "prompt tokens found instead of computed"]]) {
      const value = el("dd", {}, NOTHING);
      this.#figures.set(id, value);
      parts.figures.append(el("div", { data: { figure: id } }, el("dt", {}, label), value));
    }
    this.curve = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.curve.setAttribute("aria-hidden", "true");
    this.curve.setAttribute("viewBox", `0 0 ${HISTORY - 1} 20`);
    this.curve.setAttribute("preserveAspectRatio", "none");
    this.curve.append(document.createElementNS(this.curve.namespaceURI, "polyline"));
    parts.figures.querySelector('[data-figure="pace"]').append(this.curve);
  }

  show(snapshot) {
    this.#showFigures(snapshot);
    this.#showTiers(snapshot.house?.tiers ?? {});
    const seen = new Set();
    snapshot.sessions.forEach((session, place) => {
      seen.add(session.id);
      let row = this.#rows.get(session.id);
      if (!row) this.#rows.set(session.id, (row = new Row(this)));
      if (this.parts.sessions.children[place] !== row.element) this.parts.sessions.insertBefore(row.element, this.parts.sessions.children[place] ?? null);
      row.show(session, snapshot);
    });
    for (const [id, row] of this.#rows) {
      if (seen.has(id)) continue;
      row.element.remove();
      this.#rows.delete(id);
    }
    this.parts.empty.hidden = seen.size > 0;
  }

  /** Cells of the session whose last response this is; undefined if it is not in the map. */
  cellsOf(responseId) {
    return [...this.#rows.values()].find((row) => responseId.startsWith(row.session.response))?.cells;
  }

  /** Chats have other names now. */
  rename() {
    for (const row of this.#rows.values()) row.showName();
  }

  #showFigures({ own, house }) {
    const set = (id, text) => (this.#figures.get(id).textContent = text);
    this.#pace = [...this.#pace, own.tokens_per_s].slice(-HISTORY);
    const top = Math.max(1, ...this.#pace);
    this.curve.firstChild.setAttribute("points", this.#pace.map((pace, i) => `${i + HISTORY - this.#pace.length},${19 - (pace / top) * 17}`).join(" "));
    set("pace", own.tokens_per_s.toFixed(1));
    set("ttft", own.ttft_ms === null ? NOTHING : duration(own.ttft_ms));
    set("queue", house ? `${count(house.running)}, ${count(house.waiting)}` : `${count(own.answers)} of yours`);
    this.parts.figures.classList.toggle("is-shared", !house);
    if (!house) return;
    set("up", `${bytes(house.bytes_up_per_s)}/s`);
    set("down", `${bytes(house.bytes_down_per_s)}/s`);
    const hits = Object.entries(house.hit_tokens).map(([tier, tokens]) => el("span", {}, el("i", { className: "swatch", data: { kind: HIT_KINDS[tier] } }), `${tier} ${count(tokens)}`));
    this.#figures.get("hits").replaceChildren(...hits);
  }

  #showTiers(tiers) {
    const names = Object.keys(tiers);
    if (this.parts.tiers.dataset.names !== names.join()) {
      this.parts.tiers.dataset.names = names.join();
      this.parts.tiers.replaceChildren(...names.map((name) => gauge(name)));
    }
    names.forEach((name, place) => {
      const { in_use, copying, cached, free } = tiers[name];
      const total = in_use + copying + cached + free;
      const [label, meter] = this.parts.tiers.children[place].children;
      label.lastChild.textContent = `${count(total - free)} of ${count(total)}`;
      label.title = "Blocks that are taken";
      [in_use, copying, cached].forEach((part, i) => (meter.children[i].style.width = `${total ? (100 * part) / total : 0}%`));
    });
  }
}

function gauge(name) {
  const level = el("div", { className: "level", data: { tier: name }, aria: { hidden: "true" } }, el("i", { data: { part: "use" } }), el("i", { data: { part: "copying" } }), el("i", { data: { part: "cached" } }));
  return el("div", { className: "gauge" }, el("p", {}, el("b", {}, name), el("span", {}, "")), level);
}

/** One session. A column is a block, or where there are too many several, shown as most of them are. */
class Row {
  #columns = [];

  constructor(map) {
    this.map = map;
    this.name = el("button", { type: "button", className: "session-name", on: { click: () => map.open(this.session.response) } });
    this.size = el("span", { className: "session-size" });
    this.sea = el("div", { className: "sea", aria: { hidden: "true" } });
    this.told = el("p", { className: "session-told" });
    this.element = el("li", { className: "session" }, el("div", { className: "session-head" }, this.name, this.size), this.sea, this.told);
  }

  show(session, { block_tokens }) {
    this.session = session;
    this.cells = expand(session.cells);
    this.showName();
    this.size.textContent = `${count(session.num_tokens)} tokens`;
    this.told.textContent = summary(this.cells, block_tokens);
    const { columns, share } = condense(this.cells);
    this.sea.style.setProperty("--columns", Math.max(columns.length, 16));
    this.sea.title = share > 1 ? `A column stands for ${share} blocks` : "A column is a block";
    while (this.#columns.length > columns.length) this.#columns.pop().element.remove();
    columns.forEach((cell, place) => this.#showColumn(cell, place));
  }

  showName() {
    const title = this.map.nameOf(this.session.response);
    this.name.textContent = title ?? `Session ${this.session.response.slice(-6)}`;
    this.name.disabled = title === undefined;
  }

  #showColumn(cell, place) {
    let column = this.#columns[place];
    if (!column) {
      column = { element: el("i", { className: "cell" }), cell: "" };
      column.element.style.setProperty("--place", place);
      this.#columns.push(column);
      this.sea.append(column.element);
    }
    if (column.cell === cell) return;
    const { kind, level } = KINDS[cell];
    column.element.dataset.kind = kind;
    column.element.style.setProperty("--y", `${level * LEVEL_PX}px`);
    column.cell = cell;
  }
}

/** "3D2h" as "DDDhh". */
export function expand(runs) {
  return runs.replace(/(\d+)(\D)/g, (_, times, cell) => cell.repeat(Number(times)));
}

function condense(cells) {
  const share = Math.max(1, Math.ceil(cells.length / MAX_COLUMNS));
  if (share === 1) return { columns: [...cells], share };
  const columns = [];
  for (let start = 0; start < cells.length; start += share) columns.push(most(cells.slice(start, start + share)));
  return { columns, share };
}

function most(cells) {
  const counts = tally(cells);
  return Object.keys(counts).reduce((best, cell) => (counts[cell] > counts[best] ? cell : best));
}

function tally(cells) {
  const counts = {};
  for (const cell of cells) counts[cell] = (counts[cell] ?? 0) + 1;
  return counts;
}

function summary(cells, blockTokens) {
  if (!cells) return `No full block of ${blockTokens} tokens yet`;
  const counts = tally(cells);
  return Object.entries(KINDS).filter(([cell]) => counts[cell]).map(([cell, { name }]) => `${count(counts[cell])} ${name}`).join(" · ");
}
