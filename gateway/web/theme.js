// Before the first paint: the theme that was chosen here, else what the system prefers.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("tidegate.theme");
  } catch {
    // storage may be forbidden: the system's preference then
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
