/** Who said what: the answers of the called models, equal ones together, with the weight of their vote. */

import { el, setShare } from "./dom.js";
import { listed, number, plural } from "./format.js";

const SHOWN = 90; // characters of an answer

/**
 * The list, and a sentence above it; null where nothing was called.
 *
 * @param response Of /route: `forms` says what each answer was read as, `votes` weighs each form.
 * @param size The number of candidates.
 */
export function opinionsView(response, size) {
  const opinions = opinionsOf(response);
  const called = response.calls.filter((call) => !call.skipped).length;
  if (called === 0) return null;
  const isCount = countsHeads(opinions);
  const most = Math.max(...opinions.map(({ weight }) => weight ?? 0), 1e-9);
  return el(
    "div",
    { class: "opinions-said" },
    el("p", { class: "sentence" }, inWords(opinions, called, size, { ...response, isCount })),
    opinions.length > 1
      ? el(
          "ol",
          { class: "votes", "aria-label": "Votes" },
          opinions.map(({ text, names, weight, won }) =>
            el(
              "li",
              { class: won ? "won" : null },
              el("span", { class: "vote-form", title: text }, short(text)),
              el("span", { class: "muted vote-names" }, listed(names)),
              el("span", { class: "bar-track", "aria-hidden": "true" }, setShare(el("span", { class: "bar-fill" }), "width", Math.max(weight ?? 0, 0) / most)),
              el("span", { class: "num" }, weightInWords(weight, isCount)),
            ),
          ),
        )
      : null,
  );
}

/** Texts that count as the same answer, with their models; the one with the largest vote first. */
function opinionsOf({ answers = {}, forms = {}, votes, served_by: winner }) {
  const groups = new Map();
  for (const [name, text] of Object.entries(answers)) {
    if (text === null || text === "") continue;
    const form = forms[name] ?? null;
    const key = form === null ? `unread ${name}` : form;
    if (!groups.has(key)) groups.set(key, { text, names: [], weight: form === null ? null : (votes[form] ?? null), won: false });
    const group = groups.get(key);
    group.names.push(name);
    if (name === winner) Object.assign(group, { text, won: true });
  }
  return [...groups.values()].sort((a, b) => Number(b.won) - Number(a.won) || (b.weight ?? -Infinity) - (a.weight ?? -Infinity));
}

/** Who was asked, and how the answer was chosen. */
function inWords(opinions, called, size, { served_by: winner, certificate, isCount }) {
  const asked = called === size && size > 1 ? `All ${size} models were asked` : `${called} of ${plural(size, "model")} ${called === 1 ? "was" : "were"} asked`;
  if (called === 1) return `${asked}, ${winner}.${certificate.holds ? " The others were not needed for this risk level." : ""}`;
  const own = opinions.find(({ won }) => won);
  if (own === undefined) return `${asked}.`;
  if (opinions.length === 1) return `${asked}: ${own.names.length === called ? "they" : listed(own.names)} agree.`;
  const gave = `${asked}, and gave ${plural(opinions.length, "different answer")}`;
  if (isCount) return `${gave}. Chosen is the answer with most votes; of as many, that of the model most likely to be right.`;
  const why = own.names.length > 1 ? `${listed(own.names)} agree, and their vote weighs most` : `the vote of ${winner} weighs most`;
  return `${gave}: ${why}. A vote weighs more if its model is usually right on such questions.`;
}

/** Whether each vote counts one, and not a weight. */
function countsHeads(opinions) {
  return opinions.every(({ weight, names }) => weight === null || weight === names.length);
}

/** The weight of an answer, at the end of its bar. */
function weightInWords(weight, isCount) {
  if (weight === null) return "no vote";
  if (weight < 0) return "against it"; // so rarely is its model right on such questions
  return isCount ? plural(weight, "vote") : `weight ${number(weight, 1)}`;
}

/** The beginning of a long answer, on one line. */
function short(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= SHOWN ? line : `${line.slice(0, SHOWN)}…`;
}
