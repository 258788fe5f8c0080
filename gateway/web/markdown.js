// Markdown as it streams in, built as elements. marked's lexer makes the tokens; what becomes an element is
// decided here, by name: HTML in the text stays text, links go to the web or to mail only, pictures are not
// fetched but linked. Blocks that did not change since the last call keep their elements.

import { lexer } from "/web/vendor/marked/marked.esm.js";
import { copyButton, el } from "/web/dom.js";

const LINKS = new Set(["http:", "https:", "mailto:"]);
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–", rarr: "→", larr: "←", times: "×" };
const MAX_DEPTH = 40;

/** Shows a growing text in `holder`. */
export class MarkdownView {
  constructor(holder) {
    this.holder = holder;
    this.blocks = []; // [key, element] of each top-level block
  }

  show(text) {
    const tokens = lexer(text);
    const references = JSON.stringify(tokens.links ?? {}); // a later definition changes earlier blocks
    const blocks = tokens.filter((token) => token.type !== "space" && token.type !== "def");
    let kept = 0;
    while (kept < blocks.length && this.blocks[kept]?.[0] === keyOf(blocks[kept], references)) kept += 1;
    for (const [, element] of this.blocks.splice(kept)) element.remove();
    for (const token of blocks.slice(kept)) {
      const element = block(token, 0);
      this.blocks.push([keyOf(token, references), element]);
      this.holder.append(element);
    }
  }
}

const keyOf = (token, references) => `${token.type}\n${token.raw}\n${references}`;

function block(token, depth) {
  if (depth > MAX_DEPTH) return el("p", {}, token.raw);
  switch (token.type) {
    case "heading":
      return el(`h${Math.min(token.depth + 2, 6)}`, {}, ...inline(token.tokens, depth));
    case "paragraph":
      return el("p", {}, ...inline(token.tokens, depth));
    case "text":
      return el("p", { className: "tight" }, ...inline(token.tokens ?? [token], depth));
    case "code":
      return codeBlock(token);
    case "blockquote":
      return el("blockquote", {}, ...blocks(token.tokens, depth));
    case "list":
      return list(token, depth);
    case "table":
      return table(token, depth);
    case "hr":
      return el("hr");
    default:
      return el("p", {}, token.raw ?? "");
  }
}

function blocks(tokens, depth) {
  return tokens.filter((token) => token.type !== "space" && token.type !== "def").map((token) => block(token, depth + 1));
}

function codeBlock(token) {
  const language = (token.lang ?? "").split(/\s/)[0].slice(0, 30);
  const code = el("code", {}, token.text);
  const head = el("div", { className: "code-head" }, el("span", {}, language || "text"), copyButton(() => code.textContent));
  const pre = el("pre", { tabIndex: 0, aria: { label: language ? `Code in ${language}` : "Code" } }, code);
  pre.setAttribute("role", "region");
  return el("div", { className: "code" }, head, pre);
}

function list(token, depth) {
  const made = el(token.ordered ? "ol" : "ul");
  if (token.ordered && Number.isInteger(token.start)) made.start = token.start;
  for (const item of token.items) {
    const box = item.task ? [el("input", { type: "checkbox", checked: Boolean(item.checked), disabled: true, aria: { label: "Task" } }), " "] : [];
    const inner = item.tokens.filter((inside) => inside.type !== "checkbox");
    made.append(el("li", { className: item.task ? "task" : "" }, ...box, ...blocks(inner, depth)));
  }
  return made;
}

function table(token, depth) {
  const cell = (tag, inside, column) => {
    const made = el(tag, { className: token.align[column] ? `to-${token.align[column]}` : "" }, ...inline(inside.tokens, depth));
    if (tag === "th") made.scope = "col";
    return made;
  };
  const head = el("tr", {}, ...token.header.map((inside, column) => cell("th", inside, column)));
  const rows = token.rows.map((row) => el("tr", {}, ...row.map((inside, column) => cell("td", inside, column))));
  const made = el("div", { className: "table", tabIndex: 0, aria: { label: "Table" } }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
  made.setAttribute("role", "region");
  return made;
}

function inline(tokens = [], depth = 0) {
  if (depth > MAX_DEPTH) return tokens.map((token) => token.raw);
  return tokens.flatMap((token) => span(token, depth + 1));
}

function span(token, depth) {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return [el(token.type, {}, ...inline(token.tokens, depth))];
    case "codespan":
      return [el("code", {}, token.text)];
    case "br":
      return [el("br")];
    case "link":
      return link(token.href, inline(token.tokens, depth));
    case "image":
      return link(token.href, [`[picture: ${decoded(token.text || token.href)}]`]);
    case "text":
      return token.tokens ? inline(token.tokens, depth) : [decoded(token.text)];
    case "escape":
      return [token.text];
    default:
      return [token.raw ?? ""];
  }
}

/** What it leads to shows in its title; anything but the web and mail is left as text. */
function link(href, children) {
  let url = null;
  try {
    url = new URL(decoded(href));
  } catch {
    // no absolute address
  }
  if (url === null || !LINKS.has(url.protocol)) return children;
  return [el("a", { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children)];
}

/** Character references, which the lexer leaves to an HTML parser. */
function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,6}));/g, (whole, decimal, hex, name) => {
    if (name) return NAMED[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) ? String.fromCodePoint(code) : whole;
  });
}
