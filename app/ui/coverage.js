/** Coverage: which of the last requests were certified, what the others send, and what would certify them. For admins. */

import { ApiError, getJson } from "./api.js";
import { keyWanted } from "./calibrate.js";
import { el, fill, notice } from "./dom.js";
import { count, percent } from "./format.js";
import { hasKey } from "./keys.js";
import { reasonInWords, sentence } from "./words.js";

/** A card, and how to ask for what it shows. */
export function coverageView() {
  const body = el("div", { class: "stack" });
  let said = "";

  /** Ask once; what stays the same is not drawn again, so that a command can be selected. */
  async function poll() {
    if (!hasKey("admin")) {
      show("key", keyWanted("It needs the admin key."));
      return;
    }
    try {
      const found = await getJson("coverage", "admin");
      show(JSON.stringify(found), found.requests === 0 ? el("p", { class: "muted" }, "No request was answered since the active calibration.") : found.applications.filter(({ requests }) => requests > 0).map(applicationView));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      show(error.message, notice("info", sentence(error.message)));
    }
  }

  /** Show something else than before. */
  function show(what, ...children) {
    if (what === said) return;
    said = what;
    fill(body, ...children.flat());
  }
  return {
    view: el("section", { class: "card", "aria-labelledby": "coverage-title" }, el("h2", { id: "coverage-title" }, "Which requests are certified"), body),
    poll,
  };
}

/** The share of one application, and its uncertified requests by what they send. */
function applicationView({ application, requests, certified, share, others, command }) {
  return el(
    "div",
    { class: "stack" },
    application === null ? null : el("h3", {}, application),
    el("p", {}, el("strong", {}, percent(share)), ` of the last ${count(requests)} requests are certified${others.length ? "" : "."}`, others.length ? `; ${count(requests - certified)} are not:` : null),
    others.map(kindView),
    command && others.length > 1 ? el("p", {}, "All of these at once: ", el("code", {}, command)) : null,
  );
}

/** Requests that are void for one reason, and the cure. */
function kindView({ requests, reasons, shape, what, command }) {
  return el(
    "details",
    {},
    el("summary", {}, `${count(requests)} with ${shape === null ? what.replaceAll("_", " ") : what}`),
    el("p", { class: "muted" }, `${sentence(reasons.map(reasonInWords).join("; "))}`),
    el("p", {}, "To certify them: ", el("code", {}, command)),
  );
}
