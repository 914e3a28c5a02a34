/** Light and dark theme: the system's until the user switches, while the page is open. */

import { byId } from "./dom.js";

const system = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const changes = new EventTarget();

/** Whether dark colours are shown. */
function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
}

/** A colour of the style sheet as it is now, in the words that Plotly reads. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  root.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** Call this whenever colours change. */
export function onTheme(listener) {
  changes.addEventListener("change", listener);
}

/** Wire the switch. */
export function startTheme() {
  const button = byId("theme");

  /** Name what the switch would do. */
  function label() {
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    changes.dispatchEvent(new Event("change"));
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();
}
