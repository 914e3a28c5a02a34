/** Label: sampled requests whose answers wait for a verdict, one at a time, one click or key an answer. */

import { ApiError, getJson, postJson } from "./api.js";
import { keyWanted } from "./calibrate.js";
import { byId, el, fill, notice, say, table } from "./dom.js";
import { count, number, plural } from "./format.js";
import { hasKey, onKeys } from "./keys.js";
import { distinctAnswers, sampleView } from "./sample.js";
import { adviceFor, sentence } from "./words.js";

const SELECT = "label-application";
const PAGE = 20; // samples that are read at once
const AGAIN_MS = 3000; // until samples are read again where none waits
const HOLD_MS = 10_000; // a label waits so long for a change, or until the next one; then it is sent and final

/**
 * Wire the tab; it reads samples when it comes to the front.
 *
 * `waits` is said where nothing waits for a label. `ends`: once nothing is left, that is the end.
 */
export function startLabel({ waits = "No sampled request waits for a label.", ends = false } = {}) {
  const body = byId("label-body");
  const head = el("div", { class: "stack" });
  const work = el("div", { class: "stack" });
  let samples = [];
  let current = null; // the sample that is shown
  let held = []; // labels that are not sent: {sample, verdicts, problem}
  let refused = []; // messages about labels that the gateway does not take
  let progress = []; // what waits, by application
  let application = ""; // the only one that is shown; "" shows all
  let sending = Promise.resolve(); // until the labels on their way have arrived
  let timer = null;
  let visible = false;
  let again = null; // reads samples once more
  let over = false; // everything is labelled

  onKeys(() => visible && load());
  addEventListener("pagehide", () => send());
  body.addEventListener("keydown", pressed);

  /** Read the samples that wait, and show the first. */
  async function load() {
    clearTimeout(again);
    if (over) return;
    if (!hasKey("admin")) {
      fill(body, keyWanted("Requests of live traffic are shown to admins only."));
      return;
    }
    await sending;
    try {
      const only = application ? `&application=${encodeURIComponent(application)}` : "";
      const found = await getJson(`shadow/waiting?limit=${PAGE}${only}`, "admin");
      progress = found.applications;
      for (const { sample } of held) counted(sample, 1);
      samples = found.data.filter((sample) => held.every((each) => each.sample.decision_id !== sample.decision_id) && distinctAnswers(sample).some(({ judged }) => !judged));
      current = samples.shift() ?? null;
      show();
      if (current === null && visible && held.length === 0) again = setTimeout(load, AGAIN_MS);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const advice = adviceFor(error);
      fill(body, notice("info", sentence(error.message), advice ? el("p", {}, advice) : null));
    }
  }

  /** Show the sample and what is above it. A focus inside moves to the first button. */
  function show() {
    const focused = body.contains(document.activeElement) && document.activeElement.id !== SELECT;
    fill(work, current === null ? notice("good", over ? "Everything is labelled. You can close this page." : waits) : sampleView(current, done));
    fill(body, head, work);
    showHead();
    if (focused) (work.querySelector("button") ?? head.querySelector("button, select"))?.focus();
  }

  /** Show what waits, and the labels that may be changed. */
  function showHead() {
    const alerts = refused.map((message) => el("div", { class: "notice bad", role: "alert" }, message));
    const focused = document.activeElement?.id === SELECT;
    fill(head, filterView(), progressView(progress), alerts, held.map(heldView));
    if (focused) byId(SELECT)?.focus();
  }

  /** Show the next sample; read more if none is left of those that were read. */
  function next() {
    current = samples.shift() ?? null;
    show();
    if (current === null) load();
  }

  /** Every answer of the current sample has a verdict: hold it, and send the one before. */
  function done(verdicts) {
    refused = [];
    send();
    held.push({ sample: current, verdicts, problem: null });
    counted(current, 1);
    timer = setTimeout(send, HOLD_MS);
    say(`Noted. ${plural(waiting(), "request")} left.`);
    next();
  }

  /** Take a label back that is not sent, and show its sample again. */
  function change(entry) {
    held = held.filter((each) => each !== entry);
    counted(entry.sample, -1);
    if (current !== null) samples.unshift(current);
    current = entry.sample;
    show();
  }

  /** Send the labels that wait. A failure keeps its label; a conflict does not, and its sample comes again if it waits. */
  async function send() {
    clearTimeout(timer);
    const entries = held;
    held = [];
    if (entries.length === 0) return;
    showHead();
    const answers = Promise.all(entries.map(sent));
    sending = answers;
    const results = await answers;
    const problems = results.map(({ problem }) => problem);
    if (ends && results.some(({ left }) => left !== undefined && left <= 0)) {
      over = true;
      current = null;
      show();
      return;
    }
    if (current === null) again = setTimeout(load, AGAIN_MS);
    const failed = entries.map((entry, place) => ({ ...entry, problem: problems[place] })).filter(({ problem }) => problem !== null);
    if (failed.length === 0) return;
    held = [...failed.filter(({ problem }) => problem.code !== "conflict"), ...held];
    refused = failed.filter(({ problem }) => problem.code === "conflict").map(({ problem }) => sentence(problem.message));
    if (refused.length > 0 && current === null) load();
    else showHead();
  }

  /** How many samples wait, of the application that is shown. */
  function waiting() {
    return progress.filter((each) => !application || each.application === application).reduce((sum, each) => sum + each.waiting, 0);
  }

  /** Count a sample as labelled (1), or no longer (-1). */
  function counted(sample, step) {
    const row = progress.find((each) => each.application === sample.application);
    if (!row) return;
    row.waiting -= step;
    row.labelled += step;
  }

  /** The choice of an application, and how many requests wait. */
  function filterView() {
    const names = progress.map((each) => each.application).filter((name) => name !== null);
    const options = ["", ...names].map((name) => el("option", { value: name, selected: name === application }, name || "All applications"));
    const left = waiting();
    return el(
      "div",
      { class: "row" },
      names.length === 0 ? null : el("div", {}, el("label", { for: SELECT }, "Application"), el("select", { id: SELECT, onchange: choose }, options)),
      el("p", { class: "muted" }, `${plural(left, "request")} ${left === 1 ? "waits" : "wait"} for a label${current?.application ? `; this one is of ${current.application}` : ""}. Keys: R right, W wrong, U change the last label.`),
    );
  }

  /** Show the samples of one application, or of all. */
  function choose(event) {
    application = event.target.value;
    load();
  }

  /** A label that may still be changed. */
  function heldView(entry) {
    const { verdicts, problem } = entry;
    const text = verdicts.map(([names, correct]) => `${names.join(", ")} ${correct ? "right" : "wrong"}`).join("; ");
    return el(
      "div",
      { class: `notice ${problem ? "bad" : "info"} row` },
      el("span", { role: problem ? "alert" : null }, problem ? `Not stored (${problem.message}): ` : "The last label: ", text),
      el("button", { type: "button", class: "quiet small", onclick: () => change(entry) }, "Change"),
      problem ? el("button", { type: "button", class: "quiet small", onclick: send }, "Send again") : null,
    );
  }

  /** Keys, while the focus is inside: a verdict on the first answer without one, or a change of the last label. */
  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.id === SELECT) return;
    const verdict = { r: "right", w: "wrong" }[event.key.toLowerCase()];
    if (verdict) {
      const open = [...work.querySelectorAll(".verdict")].find((each) => each.querySelector("button") && !each.querySelector('[aria-pressed="true"]'));
      open?.querySelector(`[data-verdict="${verdict}"]`).click();
    } else if (event.key.toLowerCase() === "u" && held.length > 0) change(held.at(-1));
  }

  return {
    /** Told when the tab comes to the front or leaves it. */
    shown(now) {
      if (now && !visible) load();
      if (!now) send();
      visible = now;
    },
  };
}

/** Send the verdicts on a sample: `problem` is the error where they are not stored, else null; `left` what is unlabelled. */
async function sent({ sample, verdicts }) {
  const correct = Object.fromEntries(verdicts.flatMap(([names, right]) => names.map((name) => [name, right])));
  try {
    const { left } = await postJson("feedback", "admin", { decision_id: sample.decision_id, correct }, undefined, true);
    return { problem: null, left };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return { problem: error };
  }
}

/** Samples that wait and that are labelled, beside the rows that alpha needs. */
function progressView(progress) {
  return table(
    "Rows by application",
    ["Application", "Wait", "Labelled", "Needed at least"],
    progress.map(({ application, waiting, labelled, alpha, needed }) => [application ?? "all requests", count(waiting), count(labelled), `${count(needed)} with a right answer (alpha ${number(alpha, 4)})`]),
  );
}
