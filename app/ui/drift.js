/** The realised risk with its interval, and the evidence of drift. For admins. */

import { ApiError, getJson } from "./api.js";
import { keyWanted } from "./calibrate.js";
import { chart, window } from "./charts.js";
import { el, fill, notice, setShare } from "./dom.js";
import { count, moment, percent, plural, range, shortId } from "./format.js";
import { hasKey } from "./keys.js";
import { adviceFor, sentence, streamInWords } from "./words.js";

const KEPT = 360; // points of a line: an hour
const COLOURS = 4; // further lines are dotted

/** Two cards, and how to ask for what they show. */
export function driftView() {
  const risk = el("div", {});
  const alarms = el("div", {});
  const evidence = el("div", { class: "chart", hidden: true });
  let points = [];
  let followed = "";
  let ready = {};
  document.addEventListener("readiness", ({ detail }) => (ready = detail));

  /** Ask once; the lines begin anew with another calibration or after a reset. */
  async function poll() {
    if (!hasKey("admin")) {
      missing(keyWanted("It needs the admin key."));
      return;
    }
    if (ready.promise === "same_answer" && !ready.artifact) {
      missing(el("p", { class: "muted" }, "It is known of calibrations on labelled rows, and there is none. What sampled requests say of the same answer stands ", el("a", { href: "#calibrate" }, "under “Calibrate”"), "."));
      return;
    }
    try {
      const response = await getJson("drift", "admin");
      const reports = reportsOf(response);
      const identity = `${response.calibration_id} ${reports.map(([, { alarms }]) => alarms?.since)}`;
      if (identity !== followed) points = [];
      followed = identity;
      fill(risk, reports.map(([name, report]) => [heading(name), riskView(report)]).flat(2));
      fill(alarms, reports.map(([name, report]) => [heading(name), alarmView(report.alarms, response.calibration_id), detectionView(report.detection)]).flat());
      evidence.hidden = reports.some(([, report]) => report.alarms === null);
      if (evidence.hidden) return;
      points.push({ at: new Date(), shares: sharesOf(reports) });
      if (points.length > KEPT) points.shift();
      drawEvidence(evidence, points);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const advice = adviceFor(error);
      missing(notice("info", sentence(error.message), advice ? el("p", {}, advice) : null));
    }
  }

  /** Say why there is nothing to see. */
  function missing(why) {
    if (risk.textContent === why.textContent) return; // its button may have the focus
    fill(risk, why);
    fill(alarms, el("p", { class: "muted" }, "Nothing is known of it here."));
    evidence.hidden = true;
  }
  return {
    risk: el("section", { class: "card", "aria-labelledby": "risk-title" }, el("h2", { id: "risk-title" }, "How often it missed, as far as is known"), risk),
    drift: el("section", { class: "card", "aria-labelledby": "drift-title" }, el("h2", { id: "drift-title" }, "Drift: have questions or answers changed?"), alarms, evidence, el("p", { class: "hint" }, "Each line watches one thing. A line that reaches 100 % is an alarm.")),
    poll,
  };
}

/** What is known of each application, by its name; without applications one report without a name. */
function reportsOf(response) {
  return response.applications ? Object.entries(response.applications) : [["", response]];
}

/** The name of an application above what is said of it. */
function heading(name) {
  return name ? el("h3", {}, name) : null;
}

/** How far it is to an alarm: of each stream, or where there are several applications of each application's furthest. */
function sharesOf(reports) {
  const shares = ({ alarms }) => Object.entries(alarms.streams).map(([name, { capital, alarm_at: at }]) => [streamInWords(name), Math.max(capital / at, 1e-12)]);
  if (reports.length === 1) return Object.fromEntries(shares(reports[0][1]));
  return Object.fromEntries(reports.map(([name, report]) => [name, Math.max(...shares(report).map(([, share]) => share))]));
}

/** Between which bounds the risk lies, by feedback and by the shadow sample. */
function riskView(response) {
  const { feedback, shadow, alpha, risk_q95: high, decisions } = response;
  const rows = [interval("By all feedback", feedback.lower, feedback.upper, alpha)];
  if (shadow.sampled > 0) rows.push(interval("By the random sample", shadow.lower, shadow.upper, alpha, shadow.risk));
  return [
    el("div", { class: "intervals" }, rows),
    el("p", { class: "muted" }, `Asked for: at most ${percent(alpha)} on average${high === null ? "" : `; 95 of 100 such calibrations stay below ${percent(high)}`}. The mark stands there.`),
    feedback.identified === 0
      ? el("p", { class: "hint" }, `Nothing is known of ${plural(decisions.at_own_alpha_and_pool ?? decisions.kept, "decision")} yet: say under “Try”, or with POST /feedback, who was right.`)
      : el("p", { class: "hint" }, `Of ${plural(decisions.at_own_alpha_and_pool, "decision")}, ${count(feedback.identified)} can be judged by feedback; the interval holds whatever the others were.`),
  ];
}

/** A share from 0 to 1 as a bar between two bounds, with alpha as a mark. */
function interval(name, lower, upper, alpha, at = null) {
  const words = range(lower, upper);
  const bar = el("span", { class: "between" });
  setShare(bar, "left", lower);
  setShare(bar, "width", Math.max(upper - lower, 0.004));
  return el(
    "div",
    { class: "interval" },
    el("span", {}, name),
    el("span", { class: "bar-track", "aria-hidden": "true" }, bar, setShare(el("span", { class: "limit" }), "left", alpha), at === null ? null : setShare(el("span", { class: "dot" }), "left", at)),
    el("strong", {}, words),
  );
}

/** What alarmed, or that nothing did. */
function alarmView(alarms, id) {
  if (alarms === null) return notice("info", "No alarms are configured (", el("code", {}, "watching.false_alarm"), " is null).");
  const since = `watched since ${moment(alarms.since)}, calibration ${shortId(id)}`;
  if (alarms.raised.length === 0) return el("p", { class: "sentence" }, el("span", { class: "chip on" }, "no alarm"), " ", el("span", { class: "muted" }, `${since}. While nothing changes, any alarm ever has a chance of at most ${percent(alarms.false_alarm)}.`));
  return notice(
    "bad",
    el("strong", {}, `Alarm: ${alarms.raised.map(streamInWords).join(", ")}.`),
    el("p", {}, `Questions or answers seem not to be like the calibrated rows any more: while nothing changes, any alarm ever has a chance of at most ${percent(alarms.false_alarm)}. Certificates are void until you calibrate on new rows, or reset the alarms. (${since})`),
  );
}

/** How many days until a larger risk is seen, and which sampling rate would make it a week. */
function detectionView(detection) {
  if (!detection) return null;
  const { risks, chance, judged_a_week: judged, labelled } = detection;
  const lines = risks.map(({ risk, judged: needed, days, rate_for_a_week: rate }) =>
    el("li", {}, needed === null
      ? labelled < 1
        ? `No alarm sees a risk of ${percent(risk)}: ${percent(labelled)} of the sample get a label. Label all of a smaller sample.`
        : `A risk of ${percent(risk)} is within what such few rows may have: no alarm sees it.`
      : `If ${percent(risk)} were missed: after ${count(needed)} labelled requests, ${days === null ? "which is never, as none is labelled" : plural(Math.ceil(days), "day")}${rate === null ? "" : `; a sampling rate of ${percent(rate)} makes it a week`}.`));
  return el("div", { class: "hint" }, el("p", {}, `How soon the gateway would notice that more is missed than was asked for (in ${percent(chance)} of the cases; ${plural(judged, "request")} a week ${judged === 1 ? "is" : "are"} labelled now):`), el("ul", {}, lines));
}

/** Capital as a share of where it alarms, on a logarithmic axis. */
function drawEvidence(element, points) {
  const latest = points.at(-1).shares;
  const names = Object.keys(latest);
  const label = `Evidence against “nothing changed”: ${names.map((name) => `${name} ${percent(latest[name], 2)} of an alarm`).join(", ")}.`;
  chart(element, label, (colour) => ({
    data: names.map((name, i) => ({
      x: points.map(({ at }) => at),
      y: points.map(({ shares }) => shares[name] ?? null),
      name,
      mode: "lines+markers",
      marker: { size: 4 },
      line: { color: colour(`series-${(i % COLOURS) + 1}`), width: 2, dash: i < COLOURS ? "solid" : "dot" },
      hovertemplate: "%{y:.2%} of an alarm",
    })),
    x: { type: "date", range: window(points.map(({ at }) => at)) },
    y: { type: "log", title: "share of an alarm", tickformat: "~%", dtick: 1, rangemode: "normal", range: [Math.min(-3, Math.log10(Math.min(...points.flatMap(({ shares }) => Object.values(shares))))), 0.4] },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: colour("bad"), width: 2, dash: "dash" } }],
  }));
}
