/** A calibration of the promise "the same answer": rows so far, why there is none, its age, its watch. */

import { el, notice, setShare } from "./dom.js";
import { age, count, moment, number, percent, plural } from "./format.js";
import { sentence } from "./words.js";

const FEW_ROWS = 200; // that calibrate

/** What is known of one application, and of its active calibration, if there is one. */
export function progressView(progress) {
  const { decides, refusal, stale, watch } = progress;
  const isDue = !decides || watch.alarm_at !== null;
  return [
    watch.alarm_at === null ? null : alarm(watch, decides?.reference),
    stale === "age" ? tooOld(progress) : null,
    refusal === null || stale === "age" ? null : notice("warn", el("h3", {}, "The last attempt was not activated"), el("p", {}, sentence(refusal))),
    isDue ? rowsSoFar(progress) : null,
    decides ? facts(decides) : null,
    decides?.consequences ? consequences(decides.consequences) : null,
    decides && watch.alarm_at === null ? watched(watch, decides) : null,
  ];
}

/** The rows as a bar, and what happens next. */
function rowsSoFar({ rows, needed, alpha, lost, pending, calibrate, expected_at: expected }) {
  const words = `${count(rows)} of ${count(needed)} sampled requests`;
  const more = [];
  if (lost > 0) more.push(`${count(lost)} lack an answer and count as different.`);
  if (pending > 0) more.push(`${plural(pending, "request")} still ${pending === 1 ? "waits" : "wait"} for answers.`);
  if (expected) more.push(`If requests come as they did so far, there will be enough about ${moment(expected)}.`);
  return el(
    "div",
    { class: "so-far" },
    el("p", {}, el("strong", {}, words), ` that a risk level of ${percent(alpha)} needs.`),
    el("progress", { "aria-label": words, max: needed, value: Math.min(rows, needed) }),
    more.length ? el("p", { class: "muted" }, more.join(" ")) : null,
    el("p", { class: "hint" }, nextStep(rows >= needed, calibrate)),
  );
}

/** What the operator does now. */
function nextStep(isEnough, calibrate) {
  if (calibrate) return isEnough ? "The gateway tries to calibrate by itself within a minute or two." : "The gateway calibrates by itself as soon as there are enough. More come with a larger watching.shadow_rate.";
  if (isEnough) return ["Next: ", el("code", {}, "racer calibrate --same-answer"), "."];
  return ["Requests are sampled at the rate ", el("code", {}, "watching.shadow_rate"), ", 0 unless it is set. Then run ", el("code", {}, "racer calibrate --same-answer"), "."];
}

/** What the active calibration is. */
function facts(evidence) {
  const reference = { vote: "the vote of all", answerable: "labels" }[evidence.reference] ?? evidence.reference;
  const shown = [
    ["risk level", percent(evidence.alpha)],
    [`calls expected, of ${evidence.candidates ?? "all"}`, number(evidence.expected_calls)],
    ["is the reference", reference],
    ["rows that calibrate", count(evidence.n)],
    [`made, ${moment(evidence.created_at)}`, age(evidence.created_at)],
  ];
  const { price_share: share } = evidence;
  if (isFew(evidence)) shown.splice(4, 0, [`one calibration in twenty of so few rows is above that, where ${percent(evidence.alpha)} are promised on average`, percent(evidence.risk_q95)]);
  if (share !== null && share !== undefined) shown.splice(2, 0, ["of the reference's price expected", percent(share, 0)]);
  return el("div", { class: "facts" }, shown.map(([name, value]) => el("div", {}, el("span", { class: "fact" }, value), el("span", { class: "muted" }, name))));
}

/** Whether the rows are so few that one calibration says little about its own risk. */
function isFew({ n, risk_q95: q95 }) {
  return n < FEW_ROWS && q95 !== null && q95 !== undefined;
}

/** What its activation changed against the fallback. */
function consequences(said) {
  return el("div", {}, el("h3", {}, "What it changed"), el("ul", {}, said.map((each) => el("li", {}, sentence(each)))));
}

/** What the promise bounds, of one request and of all. */
function lossOf(reference) {
  return reference === "answerable" ? { one: "missed every right answer", all: "right answers are missed" } : { one: "got a different answer", all: "answers differ" };
}

/** How many sampled answers differed since then, and how far the evidence is from an alarm. */
function watched({ sampled, differing, evidence, alarms_at: limit }, decides) {
  const { alpha, reference } = decides;
  const most = isFew(decides) ? `, ${percent(decides.risk_q95)} for one calibration in twenty` : "";
  const share = limit === null ? 0 : Math.log(Math.max(evidence, 1)) / Math.log(limit);
  const differ = sampled === 0 ? "No request was sampled since." : `Of ${plural(sampled, "request")} sampled since, ${count(differing)} would have ${lossOf(reference).one} (${percent(differing / sampled)}; promised: at most ${percent(alpha)} on average${most}).`;
  if (limit === null) return el("p", { class: "muted" }, `${differ} No alarm is configured.`);
  const bar = el("span", { class: "bar-track", "aria-hidden": "true" }, setShare(el("span", { class: "between" }), "width", share));
  return el(
    "div",
    {},
    el("div", { class: "interval" }, el("span", {}, `Evidence that ${lossOf(reference).all} too often`), bar, el("strong", {}, `${number(evidence, 1)}, alarm at ${number(limit, 0)}`)),
    el("p", { class: "muted" }, differ),
  );
}

/** No calibration succeeded for too long. */
function tooOld({ activated_at: since, refusal }) {
  return notice(
    "bad",
    el("strong", {}, `Certificates are void: no calibration succeeded since ${moment(since)}.`),
    el("p", {}, refusal === null ? "There are no new samples: look whether requests still come and are sampled." : `The last attempt: ${sentence(refusal)}`),
  );
}

/** The alarm, and what follows from it. */
function alarm({ sampled, differing, alarm_at: at }, reference) {
  return notice(
    "bad",
    el("strong", {}, `Alarm of ${moment(at)}: ${lossOf(reference).all} too often.`),
    el("p", {}, `${count(differing)} of ${plural(sampled, "sampled request")} would have ${lossOf(reference).one}. Certificates are void until this is calibrated on requests sampled after the alarm: look for a candidate, a prompt or traffic that changed.`),
  );
}
