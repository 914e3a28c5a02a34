/** What a calibration shows for itself: figures, what every alpha would cost, the law of its risk. */

import { chart, upright } from "./charts.js";
import { el, notice, table } from "./dom.js";
import { count, number, percent, plural, range } from "./format.js";
import { riskLaw } from "./law.js";

/** Everything that a dry run, or a stored calibration, says. Charts draw once it is in the page. */
export function evidenceView(found) {
  const curve = el("div", { class: "chart" });
  const law = el("div", { class: "chart" });
  const view = el(
    "div",
    {},
    el("div", { class: "facts" }, figures(found).map(([name, value]) => el("div", {}, el("span", { class: "fact" }, value), el("span", { class: "muted" }, name)))),
    warnings(found),
    el(
      "div",
      { class: "grid two" },
      found.curve ? el("figure", {}, el("figcaption", {}, found.curve.some((each) => each.mean_cost !== undefined) ? "Size and cost of a set, by risk level" : "Size of a set, by risk level"), curve) : null,
      hasLaw(found) ? el("figure", {}, el("figcaption", {}, "Realised risk: what it will be, by chance of the rows"), law) : null,
    ),
    found.groups?.length ? groups(found.groups) : null,
  );
  queueMicrotask(() => {
    if (found.curve) drawCurve(curve, found);
    if (hasLaw(found)) drawLaw(law, found);
  });
  return view;
}

/** The figures that matter, each with its name. */
function figures(found) {
  const shown = [
    [`of ${plural(found.rows, "row")} count`, count(found.n)],
    ["threshold", found.lambda_hat === null ? "none" : number(found.lambda_hat, 4)],
    ["called on average", number(found.mean_size)],
    ["of these rows refused", percent(found.abstain)],
  ];
  if (found.mean_cost !== undefined) shown.push(["mean price of a set", number(found.mean_cost, 4)]);
  if (found.feasible && isPicked(found)) shown.push(["realised risk, alpha picked from these rows", `at most ${percent(found.risk_band)}`]);
  else if (found.feasible && found.risk_q95 !== null) shown.push(["realised risk, in 9 of 10 cases", range(found.risk_q05, found.risk_q95)]);
  if (found.mean_shortfall !== undefined) shown.push(["mean shortfall of these rows", number(found.mean_shortfall, 4)]);
  if (found.weights) shown.push(["effective rows (by weight)", count(Math.round(found.weights.effective_n))]);
  if (found.judge) shown.push(["rows with a judge's verdicts", `${count(found.judge.rows)}, corrected by ${count(found.judge.human_rows)} labelled ones`]);
  if (found.answer_risk) shown.push([`final answers wrong, of ${count(found.answer_risk.answered)}`, percent(found.answer_risk.rate)]);
  return shown;
}

/** Whether alpha was not fixed before these rows were shown, so that a larger bound holds. */
function isPicked(found) {
  return found.alpha_basis === "band" || found.alpha_basis === "declared";
}

/** Whether the realised risk has the law that is drawn: no other row ties with the threshold's. */
function hasLaw(found) {
  return found.feasible && !isPicked(found) && found.delta === null && found.tied === 1;
}

/** What an operator should know before it decides. */
function warnings(found) {
  const said = [];
  if (!found.feasible) {
    said.push(notice("warn", `There is no finite threshold at ${percent(found.alpha)}: ${whyNone(found)} All candidates would be called.`));
  }
  if (found.overlap > 0 && found.overlap_voids !== false) said.push(notice("warn", `${plural(found.overlap, "row")} of these trained the router. Every certificate would be void.`));
  if (found.tied > 1) said.push(el("p", { class: "muted" }, `${count(found.tied)} of ${count(found.n)} rows tie at the threshold and ${count(found.missed)} are above it: the realised risk can be far below ${percent(found.alpha)}.`));
  const copies = [];
  if (found.duplicates > 0) copies.push(`${plural(found.duplicates, "row")} with the query of an earlier one`);
  if (found.near_duplicates > 0) copies.push(`${plural(found.near_duplicates, "row")} nearly like another`);
  if (found.training_copies > 0) copies.push(`${plural(found.training_copies, "row")} nearly like training rows`);
  if (found.overlap > 0 && found.overlap_voids === false) copies.push(`${plural(found.overlap, "row")} with a training query, as traffic has`);
  copies.push(found.overlap > 0 ? "" : "no row trained the router");
  const rows = `Rows${sampleInWords(found.sample)}: ${copies.filter(Boolean).join(", ")}.`;
  said.push(el("p", { class: "muted" }, found.shift ? `${rows} ${shiftInWords(found)}` : rows));
  return el("div", { class: "remarks" }, said);
}

/** What the rows are taken for; nothing for records that do not say. */
function sampleInWords(sample) {
  if (!sample) return "";
  const kind = sample.kind === "traffic" ? "a sample of traffic" : "a list of questions";
  const one = sample.unit === "cluster" ? ", one row for each cluster" : "";
  return ` (${kind}${sample.guessed ? ", guessed" : ""}${one})`;
}

/** Why no finite threshold keeps the promise. */
function whyNone({ n, min_n: fewest, weights }) {
  if (weights) return `the weights leave too few rows beside a question of weight ${number(weights.max_weight)}, or too many are refused.`;
  if (fewest === null) return "no number of rows is enough.";
  if (n < fewest) return `it takes ${count(fewest)} rows that count, or a larger risk level.`;
  return "refusing questions costs more than that already. Choose a larger risk level, or train with a smaller budget for refusals.";
}

/** How far it is from the calibration that decides now. */
function shiftInWords({ shift, mean_size: size, lambda_hat: lambda }) {
  const threshold = shift.lambda_change === null ? "" : `, the threshold from ${number(shift.lambda_hat, 4)} to ${number(lambda, 4)}`;
  return `Beside the active calibration: the mean set goes from ${number(shift.mean_size)} to ${number(size)}${threshold}.`;
}

/** Rows and thresholds of each group on its own. */
function groups(found) {
  return el(
    "div",
    {},
    el("h3", {}, "Groups"),
    table("Groups of rows", ["Group", "Rows", "Count", "Threshold of its own"], found.map((each) => [each.group, count(each.rows), count(each.n), each.lambda_hat === null ? "too few rows" : number(each.lambda_hat, 4)])),
  );
}

/**
 * Mean size, and mean price where there is one, for each alpha of the grid. The dashed line has each
 * size at the risk that holds with 95 % for an alpha chosen from this curve.
 */
function drawCurve(element, { curve, alpha }) {
  const priced = curve.some((each) => each.mean_cost !== undefined);
  const banded = curve.filter((each) => each.feasible && each.risk_band !== undefined);
  const last = curve.at(-1);
  const label = `Mean size of a set, from ${number(curve[0].mean_size)} at ${percent(curve[0].alpha)} to ${number(last.mean_size)} at ${percent(last.alpha)}.`;
  chart(element, label, (colour) => ({
    data: [
      { x: curve.map((each) => each.alpha), y: curve.map((each) => each.mean_size), name: "candidates called", mode: "lines+markers", line: { color: colour("accent"), width: 2, shape: "hv" }, marker: { size: 5 }, hovertemplate: "%{y:.2f}" },
      ...(banded.length ? [{ x: banded.map((each) => each.risk_band), y: banded.map((each) => each.mean_size), name: "95 % bound of the risk, if chosen here", mode: "lines", line: { color: colour("accent"), width: 1, dash: "dash", shape: "hv" }, hovertemplate: "%{y:.2f}" }] : []),
      ...(priced ? [{ x: curve.map((each) => each.alpha), y: curve.map((each) => each.mean_cost), name: "price", yaxis: "y2", mode: "lines", line: { color: colour("mark"), width: 2, dash: "dot", shape: "hv" }, hovertemplate: "%{y:.4g}" }] : []),
    ],
    x: { title: "risk level", tickformat: ".0%" },
    y: { title: "candidates" },
    ...(priced ? { y2: { title: "price" } } : {}),
    shapes: [upright(alpha, colour("mark"))],
  }));
}

/** The density of the realised risk, with the level that was asked for. */
function drawLaw(element, { n, alpha, risk_q05: low, risk_q95: high }) {
  const law = riskLaw(n, alpha);
  if (law === null) return;
  const inside = law.x.map((each, i) => (each >= low && each <= high ? law.y[i] : null));
  const label = `Density of the realised risk: nine times in ten between ${percent(low)} and ${percent(high)}, with ${percent(alpha)} asked for.`;
  chart(element, label, (colour) => ({
    data: [
      { x: law.x, y: law.y, mode: "lines", line: { color: colour("accent"), width: 2 }, hoverinfo: "skip", showlegend: false },
      { x: law.x, y: inside, mode: "lines", line: { width: 0 }, fill: "tozeroy", fillcolor: colour("wash"), hoverinfo: "skip", showlegend: false },
    ],
    x: { title: "share of misses", tickformat: ".1~%" },
    y: { showticklabels: false, showgrid: false },
    shapes: [upright(alpha, colour("mark"))],
    hovermode: false,
  }));
}
