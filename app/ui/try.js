/** Try: a question, the sets that every risk level would choose, and what the called ones say. */

import { answerCards } from "./answer.js";
import { ApiError, postJson } from "./api.js";
import { candidateBars, levelInWords, savingInWords } from "./bars.js";
import { byId, el, fill, notice, say } from "./dom.js";
import { startExamples } from "./examples.js";
import { listed } from "./format.js";
import { onKeys } from "./keys.js";
import { latestCalls } from "./paid.js";
import { riskLevel } from "./risk.js";
import { roundsInWords } from "./rounds.js";
import { startTradeoff } from "./tradeoff.js";
import { adviceFor, reasonInWords, sentence } from "./words.js";

const PAUSE_MS = 450; // after the last key, before the question is looked at

/** Wire the form; nothing is asked about a question before the user types. */
export function startTry() {
  const form = byId("ask");
  const question = byId("question");
  const tradeoff = startTradeoff(() => risk.chosen());
  const risk = riskLevel(() => {
    shown?.show();
    tradeoff.show();
  });
  const button = byId("ask-button");
  const story = [...byId("set").children]; // how it works, for as long as there is no question
  const latest = latestCalls();
  let shown = null; // what /route/levels said of the question, with its bars
  let waiting = 0;
  let asking = false; // Control-Enter, held down, would ask again and again
  let looking = new AbortController();

  question.addEventListener("input", lookSoon);
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await ask();
  });
  onKeys(() => question.value.trim() && look());
  startExamples((text) => {
    if (asking) return;
    question.value = text;
    form.requestSubmit();
  });

  /** Look once nothing more is typed or moved. */
  function lookSoon() {
    clearTimeout(waiting);
    waiting = setTimeout(look, PAUSE_MS);
  }

  /** Show the sets of the current question, without calling a candidate; rounds are planned for one level. */
  async function look() {
    clearTimeout(waiting);
    looking.abort();
    looking = new AbortController();
    const { signal } = looking;
    const query = question.value;
    if (!query.trim()) {
      forget();
      return;
    }
    const alpha = shown?.isPlan ? risk.chosen() : undefined;
    try {
      const response = await postJson("route/levels", "data", { query, alpha }, signal);
      fill(byId("ask-error"));
      shown = showSet(query, response, { risk, alpha, lookSoon });
    } catch (error) {
      if (error.name === "AbortError") return;
      forget();
      fail(error);
    }
  }

  /** Remove the set: it belongs to another question. */
  function forget() {
    shown = null;
    fill(byId("set"), story);
  }

  /** Call the set and show the result. */
  async function ask() {
    if (asking) return;
    const query = question.value;
    if (!query.trim()) {
      fill(byId("ask-error"), notice("info", "Write a question first."));
      question.focus();
      return;
    }
    asking = true;
    button.disabled = true;
    button.textContent = "Asking …";
    fill(byId("answer"));
    try {
      if (shown?.query !== query) await look();
      fill(byId("ask-error"));
      const begun = performance.now();
      const response = await postJson("route", "data", { query, execute: true, alpha: risk.chosen() });
      const size = Object.keys(response.pool_scores).length || response.certificate.guarantee.pool.length;
      const level = shown?.query === query ? shown.levelOf(response.certificate.guarantee.alpha) : undefined;
      latest.note(response.calls);
      say(`${response.abstained ? "No model was called." : `The answer of ${response.served_by}:`} ${(response.answer ?? "").slice(0, 300)}`);
      fill(byId("answer"), answerCards(response, { query, ms: performance.now() - begun, size, level, slowest: latest.slowest(size) }));
    } catch (error) {
      fail(error);
    } finally {
      asking = false;
      button.disabled = false;
      button.textContent = "Ask";
    }
  }

  /** Show an error and what to do about it. */
  function fail(error) {
    if (!(error instanceof ApiError)) throw error;
    const advice = adviceFor(error);
    fill(byId("ask-error"), notice("bad", el("strong", {}, "That did not work. "), sentence(error.message), advice ? el("p", {}, advice) : null));
  }
}

/** The candidates that are called whatever the risk level, with their verb. */
function calledInWords(selected, names) {
  if (selected.length === names.length && names.length > 1) return `All ${names.length} are`;
  return `${listed(selected)} ${selected.length === 1 ? "is" : "are"}`;
}

/** The calls of a question that are not drawn, for they are the same at every level, or made in rounds. */
function fixedInWords({ selected, certificate }) {
  const { rounds, reasons, guarantee } = certificate;
  const why = reasons.map(reasonInWords).join("; ");
  if (rounds) return `${roundsInWords(rounds, guarantee)}${why ? ` Note: ${why}.` : ""}`;
  return `${calledInWords(selected, guarantee.pool)} called at every risk level: ${why}.`;
}

/** The bars of one question, moved by the slider, or its plan at `alpha`. `risk` says which level is wanted. */
function showSet(query, response, { risk, alpha, lookSoon }) {
  const { levels, certificate } = response;
  const isPlan = certificate.rounds != null;
  const usual = certificate.guarantee.alpha;
  const names = certificate.guarantee.pool;
  const summary = el("p", { class: "sentence" });
  const saving = el("span", { class: "muted" });
  const isFixed = levels.length === 0;
  const bars = isFixed ? null : candidateBars(response);
  fill(
    byId("set"),
    el(
      "section",
      { class: "card", "aria-labelledby": "set-title" },
      el("div", { class: "card-head" }, el("h2", { id: "set-title" }, "Models that would be called"), saving),
      summary,
      isFixed ? notice("info", fixedInWords(response)) : bars.table,
      isFixed ? null : el("p", { class: "hint" }, bars.legend),
    ),
  );
  if (alpha === undefined) risk.know(usual, levels);
  show();

  /** Draw the level that is wanted. */
  function show() {
    if (isPlan && risk.chosen() !== alpha) lookSoon();
    if (isFixed) return;
    const level = levelOf(risk.chosen() ?? usual);
    summary.textContent = levelInWords(level, names);
    say(level.selected.length > 0 ? `${summary.textContent} ${listed(level.selected)}.` : summary.textContent);
    saving.textContent = level.abstained ? "" : savingInWords(level, names.length);
    bars.show(level);
  }

  /** The level with this alpha. */
  function levelOf(alpha) {
    return levels.find((each) => each.alpha === alpha);
  }
  return { query, show, levelOf, isPlan };
}
