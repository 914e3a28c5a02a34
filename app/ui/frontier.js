/** What each risk level takes under the promise "the same answer": calls, rounds and price. */

import { chart, upright } from "./charts.js";
import { el } from "./dom.js";
import { count, number, percent } from "./format.js";

const TICKS = [0.0001, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/** The curve of a calibration's evidence; it draws once it is in the page. */
export function frontierView(evidence) {
  const place = el("div", { class: "chart" });
  queueMicrotask(() => draw(place, evidence));
  return el(
    "figure",
    {},
    el("figcaption", {}, "Calls, by risk level"),
    place,
    el("p", { class: "hint" }, `Means over the ${count(evidence.n)} calibration rows themselves: a level that is chosen by this curve is no longer independent of them. Dashed: the level in force. Shaded: everything is called, for ${evidence.lost > 0 ? "too many rows lack answers" : "the rows are too few"}.`),
  );
}

/** The lines, of which the price has an axis of its own. */
function draw(element, { frontier, alpha, least_alpha: least, candidates }) {
  const [first, last] = [frontier[0], frontier.at(-1)];
  const priced = first.price_share !== null;
  const most = 1.05 * Math.max(1, first.price_share ?? 1);
  const x = frontier.map((each) => each.alpha);
  const label = `Calls of ${candidates}, from ${number(first.expected_calls)} at ${percent(first.alpha)} to ${number(last.expected_calls)} at ${percent(last.alpha)}.`;
  const line = (key, name, color, dash, more = {}) => ({ x, y: frontier.map((each) => each[key]), name, mode: "lines", line: { color, width: 2, dash, shape: "hv" }, hovertemplate: "%{y:.2f}", ...more });
  chart(element, label, (colour) => ({
    data: [
      line("expected_calls", `calls, of ${candidates}`, colour("accent"), "solid"),
      line("expected_rounds", "rounds", colour("series-2"), "dash"),
      ...(priced ? [line("price_share", "share of the reference's price", colour("mark"), "dot", { yaxis: "y2", hovertemplate: "%{y:.0%}" })] : []),
    ],
    x: { title: "risk level", type: "log", range: [Math.log10(first.alpha / 1.3), Math.log10(last.alpha)], tickvals: TICKS, ticktext: TICKS.map((each) => percent(each, 2)), hoverformat: ".3~%" },
    y: { title: "calls, rounds", range: [0, candidates * most] },
    ...(priced ? { y2: { title: "price", tickformat: ".0%", range: [0, most], tickvals: [0, 0.5, 1] } } : {}),
    shapes: [
      { type: "rect", x0: first.alpha / 1.3, x1: least, yref: "paper", y0: 0, y1: 1, fillcolor: colour("wash"), line: { width: 0 }, layer: "below" },
      upright(alpha, colour("mark")),
    ],
  }));
}
