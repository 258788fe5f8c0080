// What lies around the chat: drawers on a small screen, dialogs, the theme, and the keys for all of it.

import { $, el } from "/web/dom.js";
import { isDark, toggleTheme } from "/web/settings.js";

const KEYS = [
  ["Enter", "Send the message"],
  ["Shift + Enter", "New line"],
  ["Escape", "Stop the answer, close what is open"],
  ["↑ in an empty message box", "Edit your last message"],
  ["/", "Go to the message box"],
  ["Ctrl + Shift + O", "New chat"],
  ["Alt + ↑, Alt + ↓", "Previous chat, next chat"],
  ["Alt + M", "Show or hide the tide map"],
  ["?", "This list"],
];

export class Panels {
  #narrow = matchMedia("(max-width: 760px)");
  #tight = matchMedia("(max-width: 1120px)");
  #tideDrawer = false; // open as a drawer, which is not kept

  /** `app` has settings, access and feed, and what to do: onKey, onNewChat, onStep, onStop, onForgetKey. */
  constructor(app) {
    this.app = app;
    this.#wireDrawers();
    this.#wireSettings();
    this.#wireTheme();
    this.#wireKey();
    $("open-keys").addEventListener("click", () => $("keys-dialog").showModal());
    for (const [keys, what] of KEYS) $("key-list").append(el("dt", {}, el("kbd", {}, keys)), el("dd", {}, what));
    document.addEventListener("keydown", (event) => this.#onKeyDown(event));
  }

  get isTouch() {
    return matchMedia("(pointer: coarse)").matches;
  }

  // ---- drawers ----

  closeChats() {
    this.#showChats(false);
  }

  watchTide() {
    this.app.feed.watch(this.#isTideOpen);
  }

  get #isTideOpen() {
    return this.#tight.matches ? this.#tideDrawer : this.app.settings.tide;
  }

  #wireDrawers() {
    $("show-chats").addEventListener("click", () => this.#showChats(true));
    $("close-chats").addEventListener("click", () => this.#showChats(false));
    $("toggle-tide").addEventListener("click", () => this.#toggleTide());
    $("close-tide").addEventListener("click", () => this.#toggleTide());
    $("veil").addEventListener("click", () => this.#closeDrawers());
    this.#tight.addEventListener("change", () => this.#adjust());
    this.#narrow.addEventListener("change", () => this.#showChats(false));
    this.#adjust();
  }

  #showChats(shown) {
    const wasShown = $("app").classList.contains("with-chats");
    $("app").classList.toggle("with-chats", shown && this.#narrow.matches);
    $("show-chats").setAttribute("aria-expanded", String(shown));
    this.#adjust();
    if (shown) $("new-chat").focus();
    else if (wasShown) $("show-chats").focus();
  }

  #toggleTide() {
    if (this.#tight.matches) this.#tideDrawer = !this.#tideDrawer;
    else this.app.settings.change({ tide: !this.app.settings.tide });
    this.#adjust();
    this.watchTide();
    if (this.#tight.matches) $(this.#tideDrawer ? "close-tide" : "toggle-tide").focus();
  }

  /** Returns whether one was open. */
  #closeDrawers() {
    if ($("app").classList.contains("with-chats")) this.#showChats(false);
    else if (this.#tight.matches && this.#tideDrawer) this.#toggleTide();
    else return false;
    return true;
  }

  #adjust() {
    if (!this.#tight.matches) this.#tideDrawer = false;
    const chats = $("app").classList.contains("with-chats");
    $("app").classList.toggle("with-tide", this.#isTideOpen);
    $("tide").inert = !this.#isTideOpen;
    $("chats").inert = this.#narrow.matches && !chats;
    $("toggle-tide").setAttribute("aria-expanded", String(this.#isTideOpen));
    $("veil").hidden = !(chats || this.#tideDrawer);
  }

  // ---- dialogs ----

  askForKey(reason) {
    $("key-error").textContent = reason;
    if (!$("key-dialog").open) $("key-dialog").showModal();
  }

  confirmDelete() {
    const dialog = $("delete-dialog");
    dialog.returnValue = "keep";
    dialog.showModal();
    return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "delete"), { once: true }));
  }

  showModels(names) {
    $("model-field").hidden = names.length < 2;
    $("set-model").replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  }

  #wireKey() {
    $("key-form").addEventListener("submit", () => {
      this.app.access.use($("key").value.trim(), $("key-remember").checked);
      $("key").value = "";
      this.app.onKey();
    });
  }

  #wireSettings() {
    const { settings } = this.app;
    $("open-settings").addEventListener("click", () => {
      $("set-system").value = settings.system;
      $("set-temperature").value = settings.temperature ?? "";
      $("set-tokens").value = settings.maxTokens ?? "";
      if (settings.model) $("set-model").value = settings.model;
      $("key-line").hidden = !this.app.access.hasKey;
      $("settings-dialog").showModal();
    });
    $("settings-form").addEventListener("submit", () => {
      const number = (id) => ($(id).value === "" ? null : Number($(id).value));
      const model = $("model-field").hidden ? "" : $("set-model").value;
      settings.change({ model, system: $("set-system").value.trim(), temperature: number("set-temperature"), maxTokens: number("set-tokens") });
      if (model) $("model").textContent = model;
    });
    $("settings-cancel").addEventListener("click", () => $("settings-dialog").close());
    $("forget-key").addEventListener("click", () => this.app.onForgetKey());
  }

  #wireTheme() {
    const show = () => $("toggle-theme").setAttribute("aria-pressed", String(isDark()));
    $("toggle-theme").addEventListener("click", () => {
      toggleTheme();
      show();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
  }

  // ---- keys ----

  #onKeyDown(event) {
    if (document.querySelector("dialog[open]")) return;
    const isTyping = event.target.matches("input, textarea, select");
    if (this.#act(event, isTyping)) event.preventDefault();
  }

  /** Returns whether the key was for us. */
  #act(event, isTyping) {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.key === "Escape") return this.#closeDrawers() || this.app.onStop();
    if (event.ctrlKey && event.shiftKey && event.code === "KeyO") this.app.onNewChat();
    else if (event.altKey && event.key === "ArrowUp") this.app.onStep(-1);
    else if (event.altKey && event.key === "ArrowDown") this.app.onStep(1);
    else if (event.altKey && event.code === "KeyM") this.#toggleTide();
    else if (plain && !isTyping && event.key === "/") $("composer").focus();
    else if (plain && !isTyping && event.key === "?") $("keys-dialog").showModal();
    else return false;
    return true;
  }
}
