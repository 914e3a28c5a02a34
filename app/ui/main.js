/** The page: keys, colours, tabs, and how the gateway is. Each tab is a module of its own. */

import { ApiError, readiness } from "./api.js";
import { advice, statusInWords } from "./advice.js";
import { startCalibrate } from "./calibrate.js";
import { byId, fill } from "./dom.js";
import { forgetKeys, hasKey, onKeys, useKeys } from "./keys.js";
import { startLabel } from "./label.js";
import { startSameAnswer } from "./sameanswer.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";
import { startTry } from "./try.js";
import { startWatch } from "./watch.js";
import { sentence } from "./words.js";

const LOOK_EVERY_MS = 5000;

/** Wire the dialog that takes keys. Its fields are emptied when it closes. */
function startKeys() {
  const dialog = byId("keys");
  const fields = [byId("data-key"), byId("admin-key")];
  byId("keys-open").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keys-wanted", () => dialog.showModal());
  byId("keys-form").addEventListener("submit", () => useKeys(...fields.map((field) => field.value)));
  byId("keys-forget").addEventListener("click", () => {
    forgetKeys();
    dialog.close();
  });
  dialog.addEventListener("close", () => fields.forEach((field) => (field.value = "")));
  onKeys(() => {
    const held = ["data", "admin"].filter(hasKey);
    byId("keys-open").dataset.held = String(held.length > 0);
    byId("keys-open").setAttribute("aria-label", held.length ? `Keys: ${held.join(" and ")}` : "Keys");
  });
}

/** Say every few seconds whether the gateway is ready, and what to do where it is not. */
function startStatus() {
  const pill = byId("status");
  let said = "";

  /** Ask, and show what changed. */
  async function look() {
    let ready;
    try {
      ready = await readiness();
    } catch {
      ready = { status: "unreachable" };
    }
    const text = JSON.stringify(ready);
    if (text === said) return;
    said = text;
    const { state, words } = statusInWords(ready);
    pill.dataset.state = state;
    pill.textContent = words;
    byId("standing").hidden = !ready.standing;
    byId("standing").textContent = ready.standing ? sentence(ready.standing) : "";
    fill(byId("advice"), advice(ready));
    document.dispatchEvent(new CustomEvent("readiness", { detail: ready }));
  }
  document.addEventListener("look-again", look);
  setInterval(() => document.hidden || look(), LOOK_EVERY_MS);
  return look();
}

/** Only label: `racer label --page` serves the page, and its link has the key. Whether it does. */
function startLinked() {
  const key = /^#label&key=([\w-]+)$/.exec(location.hash)?.[1];
  if (!key) return false;
  for (const name of ["tabs", "keys-open", "try"]) byId(name).hidden = true;
  byId("label").hidden = false;
  byId("label-lead").textContent = "Say which answers are right. A label can be changed until the next one or for ten seconds; then it is written to the file of rows.";
  useKeys("", key);
  startLabel({ waits: "The models are answering the next questions.", ends: true }).shown(true);
  return true;
}

/** The whole page. */
function startTabbed() {
  startKeys();
  startTry();
  const calibrate = startCalibrate();
  const sameAnswer = startSameAnswer();
  const label = startLabel();
  const watch = startWatch();
  startTabs((name) => {
    calibrate.shown(name === "calibrate");
    sameAnswer.shown(name === "calibrate");
    label.shown(name === "label");
    watch.shown(name === "watch");
  });
}

startTheme();
if (!startLinked()) startTabbed();
startStatus();
