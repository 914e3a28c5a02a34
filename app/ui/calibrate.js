/** Calibrate: rows in, evidence to look at, a calibration made active, and the way back. */

import { ApiError, getJson, postFile, postJson, readiness, remove } from "./api.js";
import { canaryView } from "./canary.js";
import { byId, confirmed, el, fill, notice, say, table } from "./dom.js";
import { evidenceView } from "./evidence.js";
import { bytes, count, moment, number, percent, shortId } from "./format.js";
import { follow, hasEnded } from "./jobs.js";
import { hasKey, onKeys } from "./keys.js";
import { adviceFor, sentence, servedInWords, VOID_UNTIL_NEXT } from "./words.js";

const PHASES = {
  waiting: "waiting for its turn",
  reading: "reading rows",
  scoring: "scoring rows with the router",
  thresholds: "computing thresholds",
  storing: "storing",
};

// The gateway that held the job is gone, or cannot be heard.
const LOST = ["job_not_found", "unreachable"];
const CANARY_MS = 10_000; // between two looks at what a canary realises
const UNKNOWN = "It is not known whether it was activated";

/** Wire the tab; it asks for the history when it comes to the front. */
export function startCalibrate() {
  const work = el("div", { id: "calibrate-work" });
  const history = el("div", { id: "history" });
  const form = uploadForm(run);
  const canary = canaryView((step) => activate(step));
  let visible = false;
  let busy = false;
  let hasCanary = false;

  fill(byId("calibrate-body"), form.card, work, canary.view, history);
  onKeys(refresh);
  setInterval(() => visible && hasCanary && !document.hidden && lookAtCanary(), CANARY_MS);
  document.addEventListener("readiness", () => visible && refresh());

  /**
   * Send a file with its options: as a dry run, or to be activated where `expected` is what is active
   * still; "" expects none.
   */
  async function run({ file, options }, expected = null) {
    if (busy) return;
    const dryRun = expected === null;
    if (!file) {
      fill(work, notice("info", "Choose a file of labelled rows first."));
      return;
    }
    busy = true;
    form.disable(true);
    try {
      const query = { ...options, dry_run: dryRun, wait: false, ...(dryRun ? {} : { expected_active_id: expected }) };
      fill(work, progressCard({ status: "waiting", phase: "waiting" }, null, `sending ${bytes(file.size)}`));
      const response = await postFile("calibrate", "admin", file, query);
      const job = response.job ? await follow(response.job, (each) => fill(work, progressCard(each, cancel(each)))) : { status: "done", result: response };
      if (job.error) throw new ApiError(job.error.status ?? 422, job.error.code, job.error.message);
      fill(work, dryRun ? lookCard(job.result, { file, options }) : doneCard(job.result));
      say(dryRun ? "The dry run is done; its evidence is below." : `Calibration ${shortId(job.result.id)} is active.`);
      if (!dryRun) {
        document.dispatchEvent(new Event("look-again"));
        await refresh();
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const lost = !dryRun && LOST.includes(error.code);
      fill(work, lost ? unknown(error) : failure(error));
      say(`${lost ? UNKNOWN : "Nothing was changed"}. ${error.message.slice(0, 300)}`);
      if (lost) await refresh();
    } finally {
      busy = false;
      form.disable(false);
    }
  }

  /** A button that ends a job. */
  function cancel(job) {
    if (hasEnded(job)) return null;
    return el("button", { type: "button", class: "quiet", onclick: () => remove(`calibrations/jobs/${job.id}`, "admin").catch(() => {}) }, "Cancel");
  }

  /** What a dry run of `sent` found, with the button that makes it so, whatever the form holds by then. */
  function lookCard(result, sent) {
    const active = result.evidence.shift?.active_id ?? "";
    const activate = el("button", { type: "button", class: "primary", disabled: result.refusal !== null, onclick: () => decide(sent, active) }, "Activate this calibration");
    return el(
      "section",
      { class: "card", "aria-labelledby": "look-title" },
      el("div", { class: "card-head" }, el("h2", { id: "look-title" }, "What it would be"), el("span", { class: "muted" }, `dry run of ${sent.file.name} at ${percent(result.evidence.alpha)}: nothing was changed`)),
      result.refusal ? notice("warn", `It cannot be activated: ${result.refusal}.`) : null,
      shiftNotice(result.evidence),
      evidenceView(result.evidence),
      el("div", { class: "row end" }, el("span", { class: "muted" }, "The rows are sent again and decide from then on."), activate),
    );
  }

  /** Activate the shown calibration, unless another one was activated meanwhile. */
  async function decide(sent, active) {
    const text = active ? `It takes the place of ${shortId(active)}. If another calibration was activated meanwhile, nothing changes.` : "It will be the first active calibration, unless another one was activated meanwhile.";
    if (await confirmed("Activate this calibration?", text, "Activate")) await run(sent, active);
  }

  /** What was stored and decides now. */
  function doneCard(result) {
    return el(
      "section",
      { class: "card", "aria-labelledby": "done-title" },
      notice("good", el("h2", { id: "done-title" }, "Active"), el("p", {}, `Calibration ${shortId(result.id)} decides from now on.`)),
      shiftNotice(result.evidence),
      evidenceView(result.evidence),
    );
  }

  /** Show the history again. */
  async function refresh() {
    if (!visible) return;
    if (!hasKey("admin")) {
      showCanary(null);
      fill(history, keyWanted("The history, and every change, needs the admin key."));
      return;
    }
    try {
      const [{ data, served, canary: found }, ready] = await Promise.all([getJson("calibrations", "admin"), readiness()]);
      showCanary(found);
      fill(history, historyCard(data, served, ready.calibration ?? "", activate));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      fill(history, failure(error));
    }
  }

  /** Renew what a canary realises; the history is shown again where it has ended or begun anew. */
  async function lookAtCanary() {
    try {
      const { canary: found } = await getJson("calibrations", "admin");
      if (found === null || found.ended) await refresh();
      else showCanary(found);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // the next look may succeed
    }
  }

  /** Show a canary, or that there is none. */
  function showCanary(found) {
    hasCanary = found !== null && !found.ended;
    canary.show(found);
  }

  /** Make a calibration active, unless another one than `active` became it since that was shown. */
  async function activate({ id, active: expected, title, text, yes }) {
    if (!(await confirmed(title, text, yes))) return;
    try {
      await postJson(`calibrations/${id}/activate`, "admin", { expected_active_id: expected });
      document.dispatchEvent(new Event("look-again"));
      await refresh();
      fill(work, notice("good", `Calibration ${shortId(id)} decides from now on.`));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      await refresh();
      fill(work, failure(error));
    }
  }

  return {
    /** Told when the tab comes to the front or leaves it. */
    shown(now) {
      visible = now;
      refresh();
    },
  };
}

/** A box that asks for the admin key. */
export function keyWanted(text) {
  return notice("info", el("p", {}, text), el("button", { type: "button", class: "quiet", onclick: () => document.dispatchEvent(new Event("keys-wanted")) }, "Give the admin key"));
}

/** The card that takes a file and its options. */
function uploadForm(run) {
  const input = el("input", { type: "file", id: "rows", class: "unseen", accept: ".jsonl,.ndjson,.json,.csv,.parquet" });
  const named = el("span", { class: "drop-name" }, "Drop a file of labelled rows here, or choose one");
  const drop = el("label", { class: "drop", for: "rows" }, named, el("span", { class: "muted" }, "JSON lines, JSON, CSV or parquet"));
  const alpha = el("input", { id: "cal-alpha", type: "number", min: "0.1", max: "99", step: "0.1", placeholder: "configured", inputmode: "decimal" });
  const delta = el("input", { id: "cal-delta", type: "number", min: "0.1", max: "99", step: "0.1", placeholder: "on average", inputmode: "decimal" });
  const score = el("select", { id: "cal-score" }, el("option", { value: "" }, "as configured"), ["cover", "cover_cost", "gap", "prob", "static"].map((each) => el("option", {}, each)));
  const look = el("button", { class: "primary" }, "Look first");
  let chosen = null;

  /** Take a file, and name it. */
  function take(file) {
    if (!file) return;
    chosen = file;
    named.textContent = `${file.name} · ${bytes(file.size)}`;
    drop.dataset.has = "true";
  }
  // A file that misses the box would be opened in the place of the page, and the keys be gone.
  for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
  input.addEventListener("change", () => take(input.files[0]));
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.dataset.over = String(kind === "dragenter" || kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files[0]);
    });
  }

  const card = el(
    "form",
    { class: "card", id: "upload", onsubmit: (event) => (event.preventDefault(), run({ file: chosen, options: given() })) },
    el("h2", {}, "Labelled rows"),
    el("div", { class: "drop-box" }, input, drop),
    el("p", { class: "hint" }, "Each row is a query and, for every candidate, whether it answered right. The rows must be drawn like the queries to come, and must not have trained the router."),
    el(
      "div",
      { class: "fields" },
      el("div", {}, el("label", { for: "cal-alpha" }, "Risk level, %"), alpha),
      el("div", {}, el("label", { for: "cal-delta" }, "May fail for, % of calibrations"), delta),
      el("div", {}, el("label", { for: "cal-score" }, "Score"), score),
      look,
    ),
  );

  /** Options that were given; the others are the configuration's. */
  function given() {
    const all = { alpha: share(alpha.value), delta: share(delta.value), score: score.value };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== ""));
  }

  return {
    card,
    /** While rows are on their way. */
    disable(now) {
      look.disabled = now;
    },
  };
}

/** A percentage that was typed, as a share; empty where none was. */
function share(typed) {
  return typed === "" ? "" : String(Number((Number(typed) / 100).toPrecision(12)));
}

/** How far a job is. */
function progressCard(job, button, words = PHASES[job.phase] ?? job.phase) {
  const counted = job.total > 0;
  const bar = el("progress", { "aria-label": words, max: counted ? job.total : null, value: counted ? job.done : null });
  const far = !counted ? "" : job.phase === "reading" ? `${bytes(job.done)} of ${bytes(job.total)}` : `${count(job.done)} of ${count(job.total)}`;
  return el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, "Under way"), el("span", { class: "muted" }, `${words} ${far}`)), bar, button ? el("div", { class: "row end" }, button) : null);
}

/** What went wrong; of wrong rows, each on a line of its own. */
function failure(error) {
  if (error.code === "invalid_rows") {
    const [, source, listed] = /^(.*?): (.*)$/s.exec(error.message) ?? [null, "rows", error.message];
    return notice(
      "bad",
      el("h2", {}, "Nothing was changed: rows are wrong"),
      el("p", { class: "muted" }, source),
      el("ul", { class: "problems" }, listed.split("; ").map((each) => problem(each))),
    );
  }
  const advice = adviceFor(error);
  const title = { conflict: "Another change came first", job_cancelled: "Cancelled" }[error.code] ?? "Nothing was changed";
  return notice("bad", el("h2", {}, title), el("p", {}, sentence(error.message)), advice ? el("p", {}, advice) : null);
}

/** An activation without a known result. */
function unknown(error) {
  return notice("warn", el("h2", {}, UNKNOWN), el("p", {}, sentence(error.message)), el("p", {}, "The history tells which calibration is active."));
}

/** One wrong row: its place, and what is wrong with it. */
function problem(text) {
  const [, place, what] = /^((?:line|row) \d+): (.*)$/s.exec(text) ?? [null, null, text];
  return el("li", {}, place ? el("strong", { class: "place" }, place) : null, place ? " " : null, what);
}

/** What changes much with a calibration; null where nothing does. */
function shiftNotice({ shift }) {
  return shift?.alert ? notice("warn", sentence(shift.alert)) : null;
}

/** What an operator should know of the active calibration; null where there is nothing. */
function activeNotice(all, active) {
  const found = all.find(({ id }) => id === active);
  if (found?.chosen) return notice("warn", `Certificates of calibration ${shortId(active)} are void: it was activated by its id, after its figures were shown. Calibrate on fresh rows.`);
  return found ? shiftNotice(found.evidence) : null;
}

/** How a calibration of the history becomes active. */
function toActivate(id, active) {
  return {
    id,
    active,
    title: "Make this calibration active?",
    text: `${shortId(id)} takes the place of ${active ? shortId(active) : "nothing"}, which stays in the history. ${VOID_UNTIL_NEXT}`,
    yes: "Make active",
  };
}

/** Whether a calibration decides, or the button that makes it so. */
function stateOf(each, active, activate) {
  const { id } = each;
  if (id === active) return el("span", { class: "chip on" }, "active");
  if (each.share !== undefined) return el("span", { class: "chip on" }, `canary, ${percent(each.share)}`);
  if (each.active) return el("span", { class: "muted" }, "active elsewhere");
  return el("button", { type: "button", class: "quiet small", "aria-label": `Make ${shortId(id)} active`, onclick: () => activate(toActivate(id, active)) }, "Make active");
}

/** All calibrations, newest first. */
function historyCard(all, served, active, activate) {
  if (all.length === 0) return el("section", { class: "card" }, el("h2", {}, "History"), el("p", { class: "muted" }, "No labelled rows were calibrated yet."));
  const rows = all.map((each) => {
    const { evidence, id } = each;
    return [el("code", { title: id }, shortId(id)), moment(each.created_at), percent(evidence.alpha), count(evidence.n), number(evidence.mean_size), (evidence.risk_q95 ?? null) === null ? "–" : percent(evidence.risk_q95), stateOf(each, active, activate)];
  });
  return el(
    "section",
    { class: "card", "aria-labelledby": "history-title" },
    el("h2", { id: "history-title" }, "History"),
    activeNotice(all, active),
    served.map((each) => el("p", { class: "served" }, servedInWords(each))),
    table("All calibrations, newest first", ["Calibration", "Made", "Risk level", "Rows", "Mean set", "Risk, 95 %", "State"], rows),
  );
}
