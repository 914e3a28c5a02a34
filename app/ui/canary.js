/** A canary: the calibration that decides a share of the requests, beside the active one. For admins. */

import { el, fill, notice, renew, table } from "./dom.js";
import { count, moment, number, percent, range, shortId } from "./format.js";
import { VOID_UNTIL_NEXT } from "./words.js";

/** The card, and how to show a canary of GET /calibrations in it; `act` is told what to make of it. */
export function canaryView(act) {
  const view = el("div", { id: "canary" });
  const figures = el("div", {});
  let drawn = "";

  return {
    view,
    /** Show a canary, or that there is none; while it is the same one, only its figures are renewed. */
    show(canary) {
      if (canary) renew(figures, realisedTable(canary));
      const identity = canary ? JSON.stringify([canary.calibration_id, canary.active.calibration_id, canary.share, canary.ended]) : "";
      if (identity === drawn) return;
      drawn = identity;
      fill(view, canary ? card(canary, figures, act) : []);
    },
  };
}

/** How much it decides or why it does not, what both realise, and what to do. */
function card(canary, figures, act) {
  const { calibration_id: id, ended, share, since, false_alarm: falseAlarm } = canary;
  const active = canary.active.calibration_id;
  const button = (label, kind, step) => el("button", { type: "button", class: kind, onclick: () => act(step) }, label);
  const promote = {
    id,
    active,
    title: "Promote the canary?",
    text: `${shortId(id)} decides all requests from then on. ${shortId(active)} stays in the history. ${VOID_UNTIL_NEXT}`,
    yes: "Promote",
  };
  const rollBack = {
    id: active,
    active,
    title: "Roll the canary back?",
    text: `${shortId(active)} decides all requests again. ${shortId(id)} stays in the history.`,
    yes: "Roll back",
  };
  return el(
    "section",
    { class: "card", "aria-labelledby": "canary-title" },
    el("div", { class: "card-head" }, el("h2", { id: "canary-title" }, `Canary of ${percent(share)}`), el("span", { class: "muted" }, `since ${moment(since)}`)),
    ended
      ? notice("bad", el("strong", {}, `Its drift alarm has ended it: ${ended}. `), `${shortId(active)} decides all requests.`)
      : el("p", { class: "sentence" }, `${shortId(id)} decides ${percent(share)} of the requests, ${shortId(active)} the others. Requests are drawn without regard to their content, so the certificates of both hold.`),
    figures,
    ended || falseAlarm === null ? null : el("p", { class: "hint" }, `A drift alarm ends it; while nothing changes and its risk is as calibrated, that has a chance of at most ${percent(falseAlarm)}.`),
    ended ? null : el("div", { class: "row end" }, button("Roll back", "quiet", rollBack), button("Promote", "primary", promote)),
  );
}

/** What the canary and the active calibration have realised since it began, by application where there are any. */
function realisedTable({ calibration_id: id, realised, active }) {
  const both = [["canary", id, realised], ["active", active.calibration_id, active.realised]];
  const named = both.some(([, , found]) => isByApplication(found));
  const rows = both.flatMap(([role, each, found]) => byApplication(found).map(([application, figures]) => [el("span", {}, `${role}, `, el("code", { title: each }, shortId(each))), ...(named ? [application] : []), ...cells(figures)]));
  return table("What both calibrations have realised since the canary began", ["Calibration", ...(named ? ["Application"] : []), "Decisions", "Mean set", "Refused", "Judged", "Risk, 95 % interval"], rows);
}

/** Whether figures are told apart by application. */
function isByApplication(found) {
  return found !== null && found.decisions === undefined;
}

/** Figures with their application. */
function byApplication(found) {
  return isByApplication(found) ? Object.entries(found) : [["–", found]];
}

/** The figures of one calibration and application; nothing is known of a canary that ended before the gateway began. */
function cells(figures) {
  if (figures === null) return ["–", "–", "–", "–", "–"];
  const { decisions, mean_set: size, abstained, judged, risk, lower, upper } = figures;
  return [count(decisions), number(size), percent(abstained), count(judged), risk === null ? "–" : `${percent(risk)} (${range(lower, upper)})`];
}
