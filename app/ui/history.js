/** The last hour, day and week: what requests got, beside always asking one model and always asking all. */

import { ApiError, getJson } from "./api.js";
import { el, fill, notice, renew, svg, table } from "./dom.js";
import { count, number, percent, plural } from "./format.js";
import { amountInWords, sentence } from "./words.js";

const NAMES = { hour: "last hour", day: "last day", week: "last week" };

/** The card, and how to ask for what it shows. */
export function historyView() {
  const words = el("p", { class: "sentence" });
  const beside = el("div", {});
  const drawings = el("div", { class: "grid two" });
  const hint = el("p", { class: "hint" });
  const buttons = Object.entries(NAMES).map(([name, title]) => el("button", { type: "button", class: "quiet small", "aria-pressed": "false", onclick: () => choose(name) }, title[0].toUpperCase() + title.slice(1)));
  const body = el("div", { class: "stack" }, words, beside, drawings, hint);
  const trouble = el("div", {});
  let found = null;
  let chosen = null; // the window that was clicked; null: the shortest with requests

  /** Ask once, and show the answer. */
  async function poll() {
    try {
      found = await getJson("history", "data");
      fill(trouble);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      found = null;
      fill(trouble, notice("info", sentence(error.message)));
    }
    show();
  }

  /** Show another window. */
  function choose(name) {
    chosen = name;
    show();
  }

  /** Show the wanted window. */
  function show() {
    body.hidden = found === null;
    if (found === null) return;
    const { windows, currency } = found;
    const name = chosen ?? windows.find((each) => each.requests > 0)?.window ?? "hour";
    Object.keys(NAMES).forEach((each, place) => buttons[place].setAttribute("aria-pressed", String(each === name)));
    const shown = windows.find((each) => each.window === name);
    words.textContent = inWords(shown);
    renew(beside, besideTable(shown, currency));
    fill(drawings, [drawing("Share with a guarantee", shown, "certified", 1, percent), drawing("Models asked, on average", shown, "calls", shown.everyone.calls ?? 1, number)]);
    hint.textContent = hintsOf(shown);
  }

  return {
    view: el("section", { class: "card", id: "history-card", "aria-labelledby": "over-time-title" }, el("div", { class: "card-head" }, el("h2", { id: "over-time-title" }, "Over time"), el("div", { class: "row", role: "group", "aria-label": "Span of time" }, buttons)), trouble, body),
    poll,
  };
}

/** One window as a sentence or two. */
function inWords({ window: name, requests, certified, refused }) {
  if (requests === 0) return `No request was answered in the ${NAMES[name]}.`;
  const none = refused > 0 ? ` ${percent(refused)} were refused, since no model was likely to be right.` : "";
  return `${plural(requests, "request")} in the ${NAMES[name]}: ${percent(certified)} came with a guarantee that holds.${none}`;
}

/** What was done, beside the two ways that need no gateway. */
function besideTable({ calls, cost, agreement, best_single: best, everyone }, currency) {
  const money = (value) => (value === null ? "–" : amountInWords({ cost: value, estimated: false }, currency));
  const about = (value) => (value === null ? "–" : amountInWords({ cost: value, estimated: true }, currency));
  const all = everyone.calls === null ? "Always all models" : `Always all ${number(everyone.calls, 1)} models`;
  return table(
    "This gateway beside always asking one model, and beside always asking all",
    ["A request, on average", "Models asked", "Cost", "Says what most say"],
    [
      ["This gateway", number(calls), money(cost), percent(agreement, 0)],
      [best.candidate === null ? "Always the best one" : `Always ${best.candidate}, the best one`, number(best.calls), about(best.cost), percent(best.agreement, 0)],
      [all, number(everyone.calls), about(everyone.cost), agreement === null ? "–" : "100 %"],
    ],
  );
}

/** What is not known, and how it becomes known; where figures come from. */
function hintsOf({ cost, sampled, read, decisions }) {
  const said = [];
  if (cost === null) said.push("The cost is known once models have prices (setting price).");
  if (sampled > 0) said.push(`“Says what most say”: of ${plural(sampled, "sampled request")}, which all models answered, how often the answer is that of most models. Asking all and counting heads always does. It is not the share that is right.`);
  else said.push("“Says what most say” is known once the gateway asks all models for a sample of the requests (setting watching.shadow_rate).");
  if (read < decisions) said.push(`Averages are over ${count(read)} of the ${count(decisions)} requests, spread over the whole time.`);
  return said.join(" ");
}

/** Bars over the parts of a window; a part without requests has none. */
function drawing(title, { window: name, parts }, field, most, words) {
  const known = parts.map((each) => each[field]);
  const width = 100 / parts.length;
  const bars = known.map((value, place) => (value === null ? null : svg("rect", { x: width * (place + 0.1), y: 100 - (100 * value) / most, width: width * 0.8, height: Math.max((100 * value) / most, 0.8) })));
  const seen = known.filter((value) => value !== null);
  const told = seen.length === 0 ? "nothing is known" : `between ${words(Math.min(...seen))} and ${words(Math.max(...seen))}`;
  return el(
    "figure",
    { class: "tradeoff" },
    el("figcaption", {}, title),
    el("div", { class: "plot" }, el("span", {}, words(most)), el("span", {}, "0"), svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": `${title}, ${NAMES[name]}: ${told}.` }, ...bars.filter(Boolean))),
    el("p", { class: "ends muted" }, el("span", {}, { hour: "an hour ago", day: "a day ago", week: "a week ago" }[name]), el("span", {}, "now")),
  );
}
