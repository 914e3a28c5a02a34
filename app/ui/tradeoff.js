/** What a risk level trades: mean calls and the bound of the risk at every level, over the calibration's rows. */

import { ApiError, getJson } from "./api.js";
import { byId, el, fill, svg } from "./dom.js";
import { number, percent } from "./format.js";
import { onKeys } from "./keys.js";

/** Wire the card; it asks once for each calibration and key. `chosen` says which level is wanted, if any is. */
export function startTradeoff(chosen) {
  const place = byId("tradeoff");
  let calibration = null;
  let asked = 0;
  let shown = null;

  document.addEventListener("readiness", ({ detail }) => {
    if (detail.status !== "ready" || detail.calibration === calibration) return;
    calibration = detail.calibration;
    look();
  });
  onKeys(look);

  /** Ask for the levels, and draw them; without any the card is hidden. */
  async function look() {
    asked += 1;
    const mine = asked;
    const found = calibration === null ? null : await levelsOrNothing();
    if (mine !== asked) return;
    place.hidden = !found?.levels.length;
    shown = place.hidden ? null : tradeoffView(found);
    fill(place, shown?.parts ?? []);
    show();
  }

  /** Mark the wanted level, or the one in force. */
  function show() {
    shown?.show(chosen());
  }
  return { show };
}

/** The levels; null where the key may not see them, or the gateway cannot say. */
async function levelsOrNothing() {
  try {
    return await getJson("route/levels", "data");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return null;
  }
}

/** Two drawings beside each other, a sentence, and how to mark a level in them. */
function tradeoffView({ levels, alpha: usual, pool }) {
  const sentence = el("p", { class: "sentence", id: "tradeoff-sentence" });
  const calls = [["this gateway", "accent", "mean_size"], ["always in one order", "off", "fixed_order_size"]];
  const drawings = [
    drawing(`Models called on average, of ${pool.length}`, levels, calls, { most: pool.length, words: String }),
    drawing("Questions that miss, at most, whichever level is chosen", levels, [["95 % certain", "mark", "risk_band"]], { words: (share) => percent(share, share < 0.1 ? 1 : 0) }),
  ];
  return {
    parts: [el("h2", { id: "tradeoff-title" }, "What a risk level trades"), sentence, el("div", { class: "grid two" }, drawings.filter(Boolean).map(({ figure }) => figure))],
    /** Mark the last level up to `alpha`; undefined: the one in force. */
    show(alpha = usual) {
      const level = levels.findLast((each) => each.alpha <= alpha) ?? levels[0];
      sentence.textContent = inWords(level, pool.length);
      for (const each of drawings) each?.mark(level.alpha, sentence.textContent);
    },
  };
}

/** One level as a sentence or two. */
function inWords({ alpha, feasible, mean_size: size, fixed_order_size: fixed, risk_band: band }, candidates) {
  if (!feasible) return `At ${percent(alpha)} the rows allow no threshold (too few, or too many that no set answers), so all ${candidates} models are called.`;
  const order = fixed === undefined ? "" : `; calling them in one order, the same for every question, takes ${number(fixed)}`;
  const bound = band === null ? "" : ` With 95 % certainty at most ${percent(band)} miss: no called model is right, though another one is.`;
  return `At ${percent(alpha)}: ${number(size)} of ${candidates} models are called on average${order}.${bound}`;
}

/**
 * A figure of lines over the risk level, and how to mark a level; null where nothing is known to draw.
 *
 * @param lines Name, colour and field of each line; levels may lack a field, or have null.
 * @param scale The end of its scale, and how values are written.
 */
function drawing(title, levels, lines, { most, words }) {
  const drawn = lines.filter(([, , field]) => levels.some((each) => each[field] != null));
  if (drawn.length === 0) return null;
  const end = most ?? Math.max(...levels.map((each) => each[drawn[0][2]] ?? 0), 1e-9);
  const last = levels.at(-1).alpha;
  const x = (alpha) => (100 * alpha) / last;
  const y = (value) => 100 - (100 * value) / end;
  const now = svg("line", { class: "now", y1: 0, y2: 100 });
  const plot = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" }, ...drawn.map(([, colour, field]) => svg("path", { class: colour, d: steps(levels, field, x, y) })), now);
  const key = drawn.map(([name, colour]) => el("span", { class: `line-key ${colour}` }, name));
  return {
    figure: el(
      "figure",
      { class: "tradeoff" },
      el("figcaption", {}, title, el("span", { class: "muted" }, key)),
      el("div", { class: "plot" }, el("span", {}, words(end)), el("span", {}, "0"), plot),
      el("p", { class: "ends muted" }, el("span", {}, "0 %"), el("span", {}, "risk level"), el("span", {}, percent(last))),
    ),
    /** Move the mark; a reader who cannot see the lines is told in words. */
    mark(alpha, told) {
      now.setAttribute("x1", x(alpha));
      now.setAttribute("x2", x(alpha));
      plot.setAttribute("aria-label", `${title}. ${told}`);
    },
  };
}

/** A path with a step at each level that has a value. */
function steps(levels, field, x, y) {
  const known = levels.filter((each) => each[field] != null);
  return known.map((each, i) => (i === 0 ? `M${x(each.alpha)} ${y(each[field])}` : `H${x(each.alpha)}V${y(each[field])}`)).join("");
}
