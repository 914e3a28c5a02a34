/** What an answer took beside calling every candidate: calls, price and time, each as a pair of bars. */

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
 * The pairs of bars; null where everyone was called, or nothing.
 *
 * @param called The calls that were made.
 * @param priceShare Their price as a share of calling everyone; null without prices.
 * @param slowest See `latestCalls`.
 * @param cost What they cost, and what calling everyone would have cost; undefined without prices.
 */
export function paidBeside({ called, size, priceShare, slowest, cost }) {
  if (called.length === 0 || called.length === size) return null;
  const pairs = [["Calls", called.length / size, String(called.length), String(size)]];
  const all = cost?.alternatives.everyone;
  if (all?.cost > 0) pairs.push(["Cost", cost.cost / all.cost, amountInWords(cost, cost.currency), amountInWords(all, cost.currency)]);
  else if (priceShare !== null) pairs.push(["Price", priceShare, percent(priceShare, 0), "100 %"]);
  const ms = Math.max(...called.filter((call) => call.ms !== undefined).map((call) => call.ms));
  if (Number.isFinite(ms)) {
    const least = slowest.untimed > 0 ? `at least ${duration(slowest.ms)}` : duration(slowest.ms);
    pairs.push(["Time", ms / slowest.ms, duration(ms), least]);
  }
  return el(
    "table",
    { class: "paid" },
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
