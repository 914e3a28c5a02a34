/** The result of a question: answer, certificate, cost, and the answer of each candidate. */

import { ApiError, postJson } from "./api.js";
import { el, fill, notice } from "./dom.js";
import { duration } from "./format.js";
import { opinionsView } from "./opinions.js";
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
      el("h2", { id: "answer-title" }, response.abstained ? "No model was called" : "The answer"),
      el("p", { class: "muted asked" }, seen.query),
      el("p", { class: "text big" }, response.answer ?? "The answer holds no text."),
      opinionsView(response, seen.size),
      el("div", { class: "facts" }, facts(response, seen).map(([name, value]) => el("div", {}, el("span", { class: "fact" }, value), el("span", { class: "muted" }, name)))),
      paid(response, seen),
      certificate(response.certificate, response.abstained),
    ),
    response.certificate.rounds ? roundsCard(response) : null,
    response.abstained ? null : sideBySide(response),
  );
}

/** What it took, as far as it is known. */
function facts(response, { ms, size }) {
  const called = callsMade(response);
  const answered = called.filter((call) => call.ms !== undefined);
  const tokens = tokensOf(response);
  const found = [
    ["models called", `${called.length} of ${size}`],
    ["until the answer arrived", duration(ms)],
    ["of which the gateway", duration(response.overhead_ms)],
  ];
  if (answered.length > 0) found.push(["the slowest call", duration(Math.max(...answered.map((call) => call.ms)))]);
  if (tokens > 0) found.push([response.usage_incomplete ? "tokens, at least" : "tokens, all calls", tokens.toLocaleString("en")]);
  return found;
}

/** The tokens of all calls that report any. */
function tokensOf({ usage }) {
  return usage.reduce((sum, each) => sum + (each.total_tokens ?? (each.prompt_tokens ?? 0) + (each.completion_tokens ?? 0)), 0);
}

/** The bars beside calling everyone. */
function paid(response, { size, level, slowest }) {
  const called = callsMade(response);
  const priceShare = level?.cost_share != null && sameNames(called, level.selected) ? level.cost_share : null;
  return paidBeside({ called, size, priceShare, slowest, cost: response.cost, tokens: response.usage_incomplete ? 0 : tokensOf(response) });
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
function certificate(terms, isRefused) {
  const reasons = terms.reasons.map(reasonInWords);
  const isUnlike = terms.remarks.includes("unlike_rows");
  const remarks = terms.remarks.filter((each) => each !== "unlike_rows").map((each) => el("p", { class: "muted" }, sentence(remarkInWords(each))));
  if (isUnlike) return outside(terms, reasons, remarks);
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
    el("h3", {}, isRefused ? "Refused; the guarantee holds" : "The guarantee holds"),
    inPlainWords(terms),
    el("p", { class: "muted" }, guaranteeInWords(terms)),
    reasons.length ? el("ul", {}, reasons.map((each) => el("li", {}, each))) : null,
    remarks,
  );
}

/** The promise as a number of questions; null where it is another promise than the usual one. */
function inPlainWords({ guarantee: { risk_target: target, alpha, alpha_basis: basis, risk_band: band, r, unit, trivial } }) {
  if (target !== "answerable" || r > 1 || unit === "conversation" || trivial) return null;
  const isBand = basis !== "fixed" && band !== null;
  const of = 1000;
  const missed = `at most ${Math.ceil(of * (isBand ? band : alpha) - 1e-9)}${isBand ? " (with 95 % certainty)" : " on average"}`;
  return el("p", {}, `Of ${of.toLocaleString("en")} questions like those it was measured on, ${missed} are put only to models that are wrong, though another one is right. Refused ones count among them.`);
}

/** What is said of a question unlike the calibrated ones: nothing was measured on such questions. */
function outside(terms, reasons, remarks) {
  return notice(
    "warn",
    el("h3", {}, "Outside what was calibrated"),
    el("p", {}, sentence(remarkInWords("unlike_rows"))),
    el("p", {}, "How often such answers are right was not measured. Check this one yourself."),
    terms.holds || reasons.length === 0 ? null : el("ul", {}, reasons.map((each) => el("li", {}, each))),
    remarks,
  );
}

/** Every answer beside the others, whole. */
function sideBySide(response) {
  const answers = response.answers ?? {};
  const calls = Object.fromEntries(response.calls.map((call) => [call.candidate, call]));
  return el(
    "section",
    { class: "card", "aria-labelledby": "said-title" },
    el("h2", { id: "said-title" }, "All answers, whole"),
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

