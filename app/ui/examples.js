/** Questions to begin with: those of the configuration, or neutral ones. A click asks one. */

import { ApiError, getJson } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { onKeys } from "./keys.js";

const NEUTRAL = ["What is 17 plus 25?", "Which weekday comes three days after Thursday?", "Name the capital of Australia."];

/** Wire the line below the question; `choose(question)` asks one. */
export function startExamples(choose) {
  const place = byId("examples");
  onKeys(look);
  show(NEUTRAL);
  look();

  /** Ask for the configured ones; neutral ones stay where there are none, or the key may not see them. */
  async function look() {
    try {
      const { examples } = await getJson("examples", "data");
      show(examples.length > 0 ? examples : NEUTRAL);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }

  /** Show some, unless they are shown: a button that has the focus keeps it. */
  function show(questions) {
    const shown = [...place.querySelectorAll("button")].map((each) => each.textContent);
    if (shown.join("\n") === questions.join("\n")) return;
    fill(place, el("span", { class: "muted" }, "Examples to click:"), questions.map((each) => el("button", { type: "button", class: "quiet small", onclick: () => choose(each) }, each)));
  }
}
