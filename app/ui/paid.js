/** What an answer took beside calling every candidate: calls, price and time, each as a bar. */

import { el, setShare } from "./dom.js";
import { duration, percent } from "./format.js";
import { amountInWords } from "./words.js";

/** The latest duration of each candidate's calls on this page: what calling everyone would wait for. */
export function latestCalls() {
  const latest = new Map();
  return {
    /** Note the calls of a response that have answered. */
    note: (calls) => calls.forEach((call) => call.ms !== undefined && !call.cancelled && latest.set(call.candidate, call.ms)),
    /** The longest of them, and how many candidates have not been timed. */
    slowest: (size) => ({ ms: Math.max(...latest.values()), untimed: size - latest.size }),
  };
}

/**
 * The bars, and what calling everyone is estimated from; null where everyone was called, or nothing.
 *
 * @param called The calls that were made.
 * @param priceShare Their price as a share of calling everyone; null without prices.
 * @param slowest See `latestCalls`.
 * @param tokens What they used; 0 where that is not known.
 * @param cost What they cost, and what calling everyone would have cost; undefined without prices.
 */
export function paidBeside({ called, size, priceShare, slowest, cost, tokens }) {
  if (called.length === 0 || called.length === size) return null;
  const pairs = [["Calls", called.length / size, String(called.length), String(size)]];
  const basis = [];
  if (tokens > 0) {
    const everyone = Math.round((tokens * size) / called.length);
    pairs.push(["Tokens", tokens / everyone, tokens.toLocaleString("en"), `about ${everyone.toLocaleString("en")}`]);
    basis.push("The tokens of calling all are estimated: as many a call as here.");
  }
  const all = cost?.alternatives.everyone;
  if (all?.cost > 0) {
    pairs.push(["Cost", cost.cost / all.cost, amountInWords(cost, cost.currency), amountInWords(all, cost.currency)]);
    if (all.estimated) basis.push("The cost of calling all is estimated: models that were not called would read the same input and answer as they do on average.");
  } else if (priceShare !== null) pairs.push(["Price", priceShare, percent(priceShare, 0), "100 %"]);
  const ms = Math.max(...called.filter((call) => call.ms !== undefined).map((call) => call.ms));
  if (Number.isFinite(ms)) {
    const least = slowest.untimed > 0 ? `at least ${duration(slowest.ms)}` : duration(slowest.ms);
    pairs.push(["Time", ms / slowest.ms, duration(ms), least]);
    const untimed = slowest.untimed > 0 ? ` (models without a call: ${slowest.untimed})` : "";
    basis.push(`The time of calling all is that of the slowest model, by each one's latest call on this page, for whatever question${untimed}.`);
  }
  return el("div", { class: "paid" }, barsTable(pairs, size), basis.length > 0 ? el("p", { class: "hint" }, basis.join(" ")) : null);
}

/** What was paid, each with what calling all takes. */
function barsTable(pairs, size) {
  return el(
    "table",
    {},
    el("caption", {}, `Paid, beside calling all ${size}`),
    el("thead", { class: "unseen" }, el("tr", {}, ["", "share", "paid", "calling all"].map((each) => el("th", { scope: "col" }, each)))),
    el(
      "tbody",
      {},
      pairs.map(([name, share, paid, all]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, name),
          el("td", { class: "bar" }, el("span", { class: "bar-track", "aria-hidden": "true" }, setShare(el("span", { class: "bar-fill" }), "width", share))),
          el("td", { class: "num" }, paid),
          el("td", { class: "num muted" }, `of ${all}`),
        ),
      ),
    ),
  );
}
