/** The chosen risk level, or the gateway's default. */

import { byId } from "./dom.js";
import { percent } from "./format.js";

/** Wire the slider, half a percent a step as in /route/levels; `moved` is told of each change. */
export function riskLevel(moved) {
  const slider = byId("alpha");
  const output = byId("alpha-value");
  const back = byId("alpha-usual");
  let touched = false;
  let usual = null;

  slider.addEventListener("input", () => set(true));
  back.addEventListener("click", () => {
    set(false);
    slider.focus();
  });

  /** Apply and show a change. */
  function set(now) {
    touched = now;
    if (!touched && usual !== null) slider.value = Math.round(200 * usual);
    const alpha = touched ? slider.valueAsNumber / 200 : usual;
    const words = alpha === null ? "as configured" : percent(alpha) + (chosen() === undefined ? " · as configured" : "");
    output.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    back.hidden = chosen() === undefined;
    moved();
  }

  /** The chosen level; undefined for the gateway's default. */
  function chosen() {
    const alpha = slider.valueAsNumber / 200;
    return touched && alpha !== usual ? alpha : undefined;
  }

  return {
    chosen,
    /** Learn which level is in force where none is chosen, and which may be; a choice that may not is undone. */
    know(alpha, levels) {
      usual = alpha;
      if (levels.length > 0) {
        slider.max = Math.max(1, Math.floor(200 * levels.at(-1).alpha + 1e-9));
        slider.min = Math.min(slider.max, Math.ceil(200 * levels[0].alpha - 1e-9));
      }
      set(touched && (levels.length === 0 || levels.some((each) => each.alpha === slider.valueAsNumber / 200)));
    },
  };
}
