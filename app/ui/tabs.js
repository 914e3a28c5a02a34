/** The tabs: by click, by arrow key, and by the address, which keeps the tab and nothing else. */

import { byId } from "./dom.js";

const NAMES = ["try", "calibrate", "label", "watch"];

/** Wire the tabs; `shown(name)` is told of each that comes to the front. */
export function startTabs(shown) {
  const buttons = NAMES.map((name) => byId(`tab-${name}`));

  /** Bring one to the front. */
  function show(name, focus = false) {
    NAMES.forEach((each, index) => {
      const active = each === name;
      buttons[index].setAttribute("aria-selected", String(active));
      buttons[index].tabIndex = active ? 0 : -1;
      byId(each).hidden = !active;
      if (active && focus) buttons[index].focus();
    });
    shown(name);
  }

  /** The tab that the address names. */
  const named = () => (NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : NAMES[0]);

  buttons.forEach((button, index) => {
    button.addEventListener("click", () => go(NAMES[index]));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = { Home: 0, End: NAMES.length - 1 }[event.key] ?? (step && (index + step + NAMES.length) % NAMES.length);
      if (to === undefined) return;
      event.preventDefault();
      go(NAMES[to], true);
    });
  });

  /** Go to a tab, so that the browser's own buttons lead back. */
  function go(name, focus = false) {
    history.pushState(null, "", `#${name}`);
    show(name, focus);
    scrollTo(0, 0);
  }

  /** The address changed; what names no tab, such as the skip link, leaves it. */
  function moved() {
    if (location.hash === "" || NAMES.includes(location.hash.slice(1))) show(named());
  }
  addEventListener("popstate", moved);
  addEventListener("hashchange", moved);
  show(named());
}
