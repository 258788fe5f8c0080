// Small helpers over the DOM. Text always becomes text nodes: nothing here or elsewhere parses HTML.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children. `data`, `aria` and `on` are objects; strings become text. */
export function el(tag, { data = {}, aria = {}, on = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(data)) made.dataset[name] = value;
  for (const [name, value] of Object.entries(aria)) made.setAttribute(`aria-${name}`, value);
  for (const [name, listener] of Object.entries(on)) made.addEventListener(name, listener);
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** One of the drawings at the end of index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onClick) {
  return el("button", { type: "button", className: "icon-button", title: label, aria: { label }, on: { click: onClick } }, icon(name));
}

/** Also where there is no clipboard API, which browsers keep for secure pages. */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const holder = el("textarea", { value: text, className: "unseen", readOnly: true });
  document.body.append(holder);
  holder.select();
  document.execCommand("copy");
  holder.remove();
}

/** A button that copies what `text()` says, and tells so for a moment. */
export function copyButton(text, label = "Copy") {
  const words = el("span", {}, label);
  const button = el("button", { type: "button", className: "copy" }, icon("copy"), words);
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      words.textContent = "Copied";
    } catch {
      words.textContent = "Not copied";
    }
    setTimeout(() => (words.textContent = label), 1500);
  });
  return button;
}

const counts = new Intl.NumberFormat("en");

export const count = (number) => counts.format(Math.round(number));

/** 1536 as "1.5 KiB". */
export function bytes(number) {
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  for (; number >= 1024 && unit < units.length - 1; unit += 1) number /= 1024;
  return `${number >= 100 || unit === 0 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

/** Milliseconds as "84 ms" or "1.2 s". */
export const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
