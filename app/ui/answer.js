/** The result of a question: answer, certificate, cost, and the answer of each candidate. */

import { ApiError, postJson } from "./api.js";
import { el, fill, notice, setShare } from "./dom.js";
import { duration, number, plural } from "./format.js";
import { paidBeside } from "./paid.js";
import { roundsCard } from "./rounds.js";
import { failureInWords, guaranteeInWords, reasonInWords, remarkInWords, sentence } from "./words.js";

/**
 * The cards of one answer.
 *
 * @param response Response of /route.
 * @param seen The question, its duration, the number of candidates, the requested level if it is
 *   known, and the slowest of the candidates' latest calls.
 */
export function answerCards(response, seen) {
  return el(
    "div",
    { class: "answers" },
    el(
      "section",
      { class: "card", "aria-labelledby": "answer-title" },
      el("h2", { id: "answer-title" }, response.abstained ? "No candidate was called" : "The answer"),
      el("p", { class: "muted asked" }, seen.query),
      el("p", { class: "text big" }, response.answer ?? "The answer holds no text."),
      response.abstained ? null : el("p", { class: "muted" }, servedBy(response)),
      el("div", { class: "facts" }, facts(response, seen).map(([name, value]) => el("div", {}, el("span", { class: "fact" }, value), el("span", { class: "muted" }, name)))),
      paid(response, seen),
      certificate(response.certificate),
    ),
    response.certificate.rounds ? roundsCard(response) : null,
    response.abstained ? null : sideBySide(response),
  );
}

/** The candidate that is quoted, and the result of the vote. */
function servedBy({ served_by: name, votes, calls }) {
  const kinds = Object.keys(votes).length;
  const called = calls.length;
  if (kinds === 0) return `In the words of ${name}.`;
  const how = called === 1 ? "No other candidate was called." : kinds === 1 ? "All votes agree." : `They gave ${plural(kinds, "different answer")}; this one won the vote.`;
  return `In the words of ${name}. ${how}`;
}

/** What it took, as far as it is known. */
function facts(response, { ms, size }) {
  const called = callsMade(response);
  const answered = called.filter((call) => call.ms !== undefined);
  const tokens = response.usage.reduce((sum, each) => sum + (each.total_tokens ?? (each.prompt_tokens ?? 0) + (each.completion_tokens ?? 0)), 0);
  const found = [
    ["candidates called", `${called.length} of ${size}`],
    ["until the answer arrived", duration(ms)],
    ["of which the gateway", duration(response.overhead_ms)],
  ];
  if (answered.length > 0) found.push(["the slowest call", duration(Math.max(...answered.map((call) => call.ms)))]);
  if (tokens > 0) found.push([response.usage_incomplete ? "tokens, at least" : "tokens, all calls", tokens.toLocaleString("en")]);
  return found;
}

/** The bars beside calling everyone. */
function paid(response, { size, level, slowest }) {
  const called = callsMade(response);
  const priceShare = level?.cost_share != null && sameNames(called, level.selected) ? level.cost_share : null;
  return paidBeside({ called, size, priceShare, slowest, cost: response.cost });
}

/** The calls that were made. */
function callsMade({ calls }) {
  return calls.filter((call) => !call.skipped);
}

/** Whether the called ones are those of a level, so that its price is theirs: others may have been called. */
function sameNames(called, names) {
  return called.length > 0 && called.length === names.length && called.every((call) => names.includes(call.candidate));
}

/** The certificate: the guarantee, or why it is void; then what is known of the question. */
function certificate(terms) {
  const reasons = terms.reasons.map(reasonInWords);
  const remarks = terms.remarks.map((each) => el("p", { class: "muted" }, sentence(remarkInWords(each))));
  if (!terms.holds) {
    return notice(
      "warn",
      el("h3", {}, "No guarantee for this answer"),
      el("p", {}, "A premise is violated:"),
      el("ul", {}, reasons.map((each) => el("li", {}, each))),
      remarks,
    );
  }
  return notice(
    "good",
    el("h3", {}, "The guarantee holds"),
    el("p", {}, guaranteeInWords(terms)),
    reasons.length ? el("ul", {}, reasons.map((each) => el("li", {}, each))) : null,
    remarks,
  );
}

/** Every answer beside the others, and the votes. */
function sideBySide(response) {
  const answers = response.answers ?? {};
  const calls = Object.fromEntries(response.calls.map((call) => [call.candidate, call]));
  const kinds = Object.entries(response.votes).sort(([, a], [, b]) => b - a);
  const most = Math.max(...kinds.map(([, weight]) => weight), 1e-9);
  return el(
    "section",
    { class: "card", "aria-labelledby": "said-title" },
    el("h2", { id: "said-title" }, "All answers"),
    kinds.length > 1
      ? el(
          "ol",
          { class: "votes", "aria-label": "Votes" },
          kinds.map(([form, weight]) =>
            el(
              "li",
              {},
              el("span", { class: "vote-form", title: form }, form),
              el("span", { class: "bar-track", "aria-hidden": "true" }, setShare(el("span", { class: "bar-fill" }), "width", weight / most)),
              el("span", { class: "num" }, `${number(weight)} ${weight === 1 ? "vote" : "votes"}`),
            ),
          ),
        )
      : null,
    el("div", { class: "grid said" }, Object.keys(calls).map((name) => said(name, calls[name], answers[name], response))),
  );
}

/** Why a candidate was not called, or not awaited. */
function notNeeded({ certificate }) {
  return certificate.rounds ? "not needed: the rounds had ended" : "not needed: the vote was decided";
}

/** One candidate's answer, with what its call took, and whether it was right. */
function said(name, call, text, response) {
  const won = name === response.served_by;
  const state = call.error ? failureInWords(call.error) : call.skipped || call.cancelled ? notNeeded(response) : duration(call.ms);
  return el(
    "article",
    { class: `answer${won ? " won" : ""}` },
    el("header", {}, el("h3", { title: name }, name), won ? el("span", { class: "chip" }, "chosen") : null),
    text === undefined || text === null ? el("p", { class: "muted" }, "no answer") : el("p", { class: "text", tabindex: text.length > 400 ? "0" : null }, text),
    el("footer", {}, el("span", { class: "muted" }, state), text ? verdict(name, response.decision_id) : null),
  );
}

/** Two buttons for feedback on an answer; the realised risk is estimated from it. */
function verdict(name, decision) {
  const place = el("span", { class: "verdict" });
  const button = (label, correct) =>
    el("button", { type: "button", class: "quiet small", "aria-label": `${name} was ${label.toLowerCase()}`, onclick: () => tell(correct) }, label);

  /** Send the verdict and show the result. */
  async function tell(correct) {
    try {
      const { waiting } = await postJson("feedback", "data", { decision_id: decision, correct: { [name]: correct } });
      fill(place, el("span", { class: "muted", role: "status" }, waiting.includes(name) ? "noted; it counts once an admin accepts it" : "noted"));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      fill(place, el("span", { class: "muted", role: "alert" }, error.message));
    }
  }
  return fill(place, button("Right", true), button("Wrong", false));
}

