/** The candidates of one question as bars, and the threshold as a line across them. */

import { el, setShare } from "./dom.js";
import { number, percent } from "./format.js";

/**
 * Where bars and line stand so that a candidate reaches the line exactly where it is in the set.
 *
 * With `gap` and `prob` the nonconformity is a constant less the score, so the scores themselves are
 * drawn. With other kinds it is not a function of the score alone: drawn is what it leaves of one.
 */
function scale(scores, nonconformity) {
  const sums = Object.keys(nonconformity).map((name) => nonconformity[name] + scores[name]);
  const spread = Math.max(...sums) - Math.min(...sums);
  if (spread < 1e-4) {
    return { drawn: "score", bar: (name) => scores[name], line: (lambda) => sums[0] - lambda };
  }
  return { drawn: "fit", bar: (name) => 1 - nonconformity[name], line: (lambda) => 1 - lambda };
}

const DRAWN = {
  score: "The score, and the bar, is how often the model answers questions like this one right. Models whose bar reaches the line are called.",
  fit: "The score is how often the model answers questions like this one right. The bar is what it can add: the share of such questions that no model of higher score answers. Models whose bar reaches the line are called.",
};

/**
 * A table of candidates, best first, and a function that shows another level of `levels`.
 *
 * The set is always the one that the gateway says; the bars only show why.
 */
export function candidateBars({ pool_scores: scores, nonconformity }) {
  const { drawn, bar, line } = scale(scores, nonconformity);
  const names = Object.keys(scores).sort((a, b) => bar(b) - bar(a) || scores[b] - scores[a]);
  const rows = names.map((name) => {
    const fillOf = setShare(el("span", { class: "bar-fill" }), "width", bar(name));
    const mark = el("span", { class: "limit", "aria-hidden": "true" });
    const place = el("td", { class: "place" });
    const row = el(
      "tr",
      {},
      el("th", { scope: "row", title: name }, el("span", { class: "name" }, name)),
      el("td", { class: "bar" }, el("span", { class: "bar-track" }, fillOf, mark)),
      el("td", { class: "num", title: "router score" }, number(scores[name], 3)),
      place,
    );
    return { name, row, mark, place };
  });
  const body = el("tbody", {}, rows.map(({ row }) => row));
  const heading = drawn === "score" ? "Router score" : "What it can add";
  const table = el(
    "table",
    { class: "bars" },
    el("caption", { class: "unseen" }, "Models, their router scores, and whether they are called"),
    el(
      "thead",
      {},
      el("tr", {}, el("th", { scope: "col" }, "Model"), el("th", { scope: "col" }, el("span", { class: "heads" }, heading, el("span", { class: "key" }, "threshold"))), el("th", { scope: "col", class: "num" }, "Score"), el("th", { scope: "col", class: "place" }, "At this level")),
    ),
    body,
  );

  /** Draw the threshold and the set of one level; those that are called stand above the others. */
  function show(level) {
    const selected = new Set(level.selected);
    const wanted = [...rows].sort((a, b) => Number(selected.has(b.name)) - Number(selected.has(a.name))).map(({ row }) => row);
    if (wanted.some((row, place) => body.children[place] !== row)) body.replaceChildren(...wanted);
    for (const { name, row, mark, place } of rows) {
      const inside = selected.has(name);
      const reaches = level.lambda_hat !== null && nonconformity[name] <= level.lambda_hat;
      row.dataset.in = String(inside);
      // One that reaches the line and is not called: the gateway abstains, or calls fewer at once.
      place.replaceChildren(el("span", { class: "chip" }, inside ? "called" : reaches ? "not called" : "left out"));
      mark.hidden = level.lambda_hat === null;
      if (level.lambda_hat !== null) setShare(mark, "left", line(level.lambda_hat));
    }
  }
  return { table, show, legend: DRAWN[drawn] };
}

/** One sentence about a level: which candidates are called, and what that saves. */
export function levelInWords(level, names) {
  const called = level.selected.length;
  if (level.abstained) return `At ${percent(level.alpha)} no model is called, however long its bar: none is likely to answer right.`;
  if (level.lambda_hat === null) {
    return `At ${percent(level.alpha)} there is no threshold that keeps the promise, so ${called === names.length ? "all" : "the best"} ${called} are called.`;
  }
  return `At ${percent(level.alpha)}: ${called} of ${names.length} ${called === 1 ? "is" : "are"} called.`;
}

/** Savings compared with the whole pool: cost if prices are known, calls otherwise. */
export function savingInWords(level, size) {
  if (level.cost_share !== null) return `costs ${percent(level.cost_share, 0)} of calling all ${size}`;
  const saved = size - level.selected.length;
  return saved === 0 ? "no call is saved" : `${saved} of ${size} calls saved`;
}
