/** The promise "the same answer": progress, frontier and history of its calibrations. For admins. */

import { ApiError, getJson, postJson } from "./api.js";
import { keyWanted } from "./calibrate.js";
import { byId, confirmed, el, fill, notice, table } from "./dom.js";
import { count, moment, number, percent, shortId } from "./format.js";
import { frontierView } from "./frontier.js";
import { hasKey, onKeys } from "./keys.js";
import { progressView } from "./progress.js";
import { adviceFor, sentence, VOID_UNTIL_NEXT } from "./words.js";

const LOOK_EVERY_MS = 30_000;

/** Wire the card; it asks while the tab is in front. */
export function startSameAnswer() {
  const place = byId("same-answer");
  let visible = false;
  let shown = "";

  onKeys(look);
  document.addEventListener("readiness", look);
  setInterval(look, LOOK_EVERY_MS);

  /** Ask, and show what changed: a button that has the focus keeps it. */
  async function look() {
    if (!visible || document.hidden) return;
    try {
      const report = hasKey("admin") ? await getJson("same-answer", "admin") : { ...(await getJson("same-answer/progress", "data")), data: [] };
      show(JSON.stringify(report), () => reportView(report, activate));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const isKeyless = error.status === 401 && !hasKey("data");
      show(error.message, () => (isKeyless ? keyWanted("How far it is needs an API key.") : failure(error)));
    }
  }

  /** Fill the card, unless it says so already. */
  function show(text, make) {
    if (text === shown) return;
    shown = text;
    fill(place, el("h2", { id: "same-answer-title" }, "The same answer for fewer calls"), make());
  }

  /** Make a calibration of the history decide for its application. */
  async function activate({ id, application }) {
    const of = application ? ` of ${application}` : "";
    if (!(await confirmed("Make this calibration active?", `${shortId(id)} decides which requests${of} need further calls. The other stays in the history. ${VOID_UNTIL_NEXT}`, "Make active"))) return;
    try {
      await postJson(`same-answer/${id}/activate`, "admin", {});
      document.dispatchEvent(new Event("look-again"));
      await look();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      show(error.message, () => failure(error));
    }
  }

  return {
    /** Told when the tab comes to the front or leaves it. */
    shown(now) {
      visible = now;
      look();
    },
  };
}

/** What went wrong. */
function failure(error) {
  const advice = adviceFor(error);
  return notice("bad", el("p", {}, sentence(error.message)), advice ? el("p", {}, advice) : null);
}

/** Every application that has the promise, and the history. */
function reportView({ applications, data }, activate) {
  const active = new Map(data.map((each) => [each.id, each]));
  const used = Object.entries(applications).filter(([, each]) => each.configured || each.active || each.rows > 0);
  if (used.length === 0 && data.length === 0) return [howToBegin()];
  return [
    used.map(([name, progress]) => applicationView(name, progress, active.get(progress.active), used.length)),
    data.length ? historyView(data, activate) : null,
  ].flat();
}

/** What to do where nothing asks for the promise. */
function howToBegin() {
  return el(
    "p",
    { class: "muted" },
    "Not in use. Candidates can be asked in rounds, until their answers make the whole pool's answer likely enough. It needs no labels: start with ",
    el("code", {}, "racer serve --calibrate-from-traffic"),
    ", or set ",
    el("code", {}, "same_answer: {calibrate: from_traffic}"),
    ".",
  );
}

/** One application: its progress beside its frontier. */
function applicationView(name, progress, record, applications) {
  const title = name || (applications > 1 ? "Other requests" : "");
  return el(
    "div",
    { class: "grid two application" },
    el("div", { class: "stack" }, title ? el("h3", {}, title) : null, progressView(progress)),
    record?.evidence.frontier ? frontierView(record.evidence) : null,
  );
}

/** All calibrations, newest first. */
function historyView(data, activate) {
  const state = (each) => {
    if (each.evidence.refused) return null;
    return each.active
      ? el("span", { class: "chip on" }, "active")
      : el("button", { type: "button", class: "quiet small", "aria-label": `Make ${shortId(each.id)} active`, onclick: () => activate(each) }, "Make active");
  };
  const rows = data.map((each) => {
    const { evidence, id } = each;
    return [el("code", { title: id }, shortId(id)), each.application || "all requests", moment(each.created_at), percent(evidence.alpha), count(evidence.n), number(evidence.expected_calls), evidence.refused ? el("span", { title: evidence.refused }, "refused") : "sound", state(each)];
  });
  return [el("h3", {}, "History"), table("Calibrations of the same answer, newest first", ["Calibration", "Requests", "Made", "Risk level", "Rows", "Calls expected", "Check", "State"], rows)];
}
