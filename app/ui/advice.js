/** The state of the gateway, and the next steps while certificates cannot hold. */

import { el, notice } from "./dom.js";
import { shortId } from "./format.js";

/** The state of /readyz as a word or two for the corner of the page. */
export function statusInWords({ status, calibration, degraded, holds }) {
  if (status === "ready" && calibration && degraded) return { state: "warn", words: degraded.includes("router") ? "ready, router out" : "ready, store lost" };
  if (status === "ready" && calibration && holds === false) return { state: "warn", words: "certificates void" };
  if (status === "ready" && calibration) return { state: "good", words: "ready" };
  if (status === "draining") return { state: "warn", words: "stopping" };
  if (status === "labelling") return { state: "good", words: "labelling" };
  if (status === "ready") return { state: "warn", words: "not calibrated" };
  return { state: "bad", words: "unreachable" };
}

/** The next step; nothing if certificates can hold. */
export function advice({ status, calibration, degraded, missing, fallback, restart }) {
  if (status === "unreachable") return notice("bad", el("strong", {}, "The gateway cannot be reached. "), "The page retries every few seconds.");
  if (status === "draining") return notice("warn", el("strong", {}, "This gateway is being stopped. "), "Requests in progress are answered.");
  if (missing) return uncalibrated(missing, fallback);
  if (restart) return notice("warn", el("strong", {}, "A restart is needed. "), `The gateway says: ${restart}.`);
  if (degraded?.includes("store_damaged")) {
    return notice("bad", el("strong", {}, "The store is damaged. "), "Restore a backup (racer restore) into an empty store, and restart.");
  }
  if (status === "ready" && degraded?.includes("router")) {
    return notice("warn", el("strong", {}, "The router does not respond. "), "All candidates are called until it does: restart its process, or see its device.");
  }
  if (status === "ready" && degraded) {
    return notice("warn", el("strong", {}, "The store cannot be read. "), `Routing continues with calibration ${shortId(calibration)}; calibrating and the history need the store.`);
  }
  return null;
}

/** What certificates lack, and the commands that come next. */
function uncalibrated(missing, fallback) {
  const isOfTraffic = missing.some(({ next }) => next.includes("--same-answer"));
  const canUpload = !isOfTraffic && missing.every(({ part }) => part === "calibration");
  return notice(
    "info",
    el("h2", {}, "Not calibrated yet"),
    el("p", {}, `Questions are answered by ${fallback === "whole_pool" ? "all candidates" : fallback}, without a guarantee. What is missing:`),
    el(
      "ol",
      { class: "steps" },
      missing.map(({ part, reason, next }) => el("li", {}, `The ${part}: ${reason}. Next:`, el("pre", { tabindex: "0" }, el("code", {}, next)))),
    ),
    isOfTraffic ? el("p", {}, "How far it is stands ", el("a", { href: "#calibrate" }, "under “Calibrate”"), ".") : null,
    canUpload ? el("p", {}, "Or ", el("a", { href: "#calibrate" }, "upload labelled rows under “Calibrate”"), ".") : null,
  );
}
