// What the user set: in this browser, for every chat.

const SETTINGS = "tidegate.settings";
const DEFAULTS = { model: "", system: "", temperature: null, maxTokens: null, tide: true };

export class Settings {
  constructor() {
    Object.assign(this, DEFAULTS);
    try {
      const saved = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
      for (const name of Object.keys(DEFAULTS)) if (name in saved) this[name] = saved[name];
    } catch {
      // the defaults, then
    }
  }

  change(values) {
    Object.assign(this, values);
    try {
      localStorage.setItem(SETTINGS, JSON.stringify(this));
    } catch {
      // good until the page is closed
    }
  }
}

/** Light or dark; null goes by the system. */
export function toggleTheme() {
  const { dataset } = document.documentElement;
  dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("tidegate.theme", dataset.theme);
  } catch {
    // good until the page is closed
  }
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
