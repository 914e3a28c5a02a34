/** A request that was answered in rounds: who was asked when, what each said, where it stopped. */

import { ApiError, getJson } from "./api.js";
import { el, fill, notice, setShare } from "./dom.js";
import { listed, number, percent, plural } from "./format.js";
import { sentence, stopInWords } from "./words.js";

/** The planned calls of a question, before any is made. */
export function roundsInWords({ first_round: first, expected_calls: expected }, { alpha, pool }) {
  if (first.length === pool.length) return `At ${percent(alpha)} all ${pool.length} are asked at once.`;
  return `At ${percent(alpha)} ${listed(first)} ${first.length === 1 ? "is" : "are"} asked first, and the others as long as these answers leave too much doubt: ${number(expected)} of ${pool.length} calls on average.`;
}

/** The card of a response; the rounds are those of its stored decision, the texts its own. */
export function roundsCard(response) {
  const place = el("div", { class: "stack" }, el("p", { class: "muted" }, "Looking up the rounds …"));
  getJson(`decisions/${encodeURIComponent(response.decision_id)}`, "data")
    .then((decision) => fill(place, decision.sequence?.made ? sequence(decision, response.answers ?? {}) : el("p", { class: "muted" }, "Its calls were not made in rounds.")))
    .catch((error) => {
      if (!(error instanceof ApiError)) throw error;
      fill(place, notice("info", sentence(error.message)));
    });
  return el("section", { class: "card", "aria-labelledby": "rounds-title" }, el("h2", { id: "rounds-title" }, "Rounds"), place);
}

/** Every round, why there was no other, and what it cost beside calling all. */
function sequence({ sequence: { made, reference, trivial }, lambda_hat: lambda, pool }, texts) {
  const limit = trivial ? 0 : lambda === null ? 1 : Math.min(1, -lambda); // 1: the first round is enough, whatever it says
  return [
    el("ol", { class: "rounds" }, made.rounds.map((round, at) => roundView(round, at + 1, { made, texts, limit, reference }))),
    el("p", { class: "sentence" }, stopInWords(made.stopped)),
    el("div", { class: "facts" }, cost(made, pool, reference).map(([name, value]) => el("div", {}, el("span", { class: "fact" }, value), el("span", { class: "muted" }, name)))),
  ];
}

/** One round: what the candidates said, equal answers together, and how sure it was then. */
function roundView({ called, doubt }, number_, { made, texts, limit, reference }) {
  return el(
    "li",
    {},
    el("h3", {}, `Round ${number_}: ${listed(called)}`),
    el("ul", { class: "opinions" }, opinions(called, made, texts).map(({ names, text }) => el("li", {}, el("span", { class: "muted" }, listed(names)), el("span", { class: "vote-form", title: text }, text)))),
    doubt === null ? null : doubtView(doubt, limit, reference),
  );
}

/** Answers of a round by class: names and a text. */
function opinions(called, { classes, failed }, texts) {
  const groups = new Map();
  for (const name of called) {
    const known = classes[name] ?? null;
    const key = failed.includes(name) ? "failed" : known ?? `unreadable ${name}`;
    const text = failed.includes(name) ? "failed" : (texts[name] ?? (known === null ? "no answer that can be read" : "no text"));
    if (!groups.has(key)) groups.set(key, { names: [], text });
    groups.get(key).names.push(name);
  }
  return [...groups.values()];
}

/** The chance of the loss as a bar, with the limit as a mark. */
function doubtView(doubt, limit, reference) {
  const stops = limit >= 1 ? "any is low enough at this risk level" : limit <= 0 ? "everything is called at this risk level" : `below ${percent(limit, 2)} it stops`;
  return el(
    "div",
    { class: "interval" },
    el("span", {}, `Estimated chance of ${reference === "answerable" ? "a miss" : "another answer"}; ${stops}`),
    el("span", { class: "bar-track", "aria-hidden": "true" }, setShare(el("span", { class: "between" }), "width", Math.max(doubt, 0.004)), limit > 0 && limit < 1 ? setShare(el("span", { class: "limit" }), "left", limit) : null),
    el("strong", {}, percent(doubt, 2)),
  );
}

/** What was called and paid, beside calling all. */
function cost({ rounds, price_share: share }, pool, reference) {
  const calls = rounds.reduce((sum, { called }) => sum + called.length, 0);
  const all = ["vote", "answerable"].includes(reference) ? "the whole pool" : reference;
  const found = [
    [rounds.length === 1 ? "round" : "rounds", String(rounds.length)],
    [`${calls === 1 ? "call" : "calls"} made; calling all takes ${pool.length}`, String(calls)],
  ];
  if (share !== null) found.push([`of the price of calling ${all}`, percent(share, 0)]);
  return found;
}
