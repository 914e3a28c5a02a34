/** The state of the gateway, and the next steps while it cannot route. */

import { el, notice } from "./dom.js";
import { shortId } from "./format.js";

const ROUTER_STEPS = [
  ["Let your candidates answer questions, and grade the answers.", "racer label questions.jsonl --config racer.yaml --out rows.jsonl --grade number"],
  ["Train a router on some of the rows.", "racer train --config racer.yaml --data train.jsonl --validation validation.jsonl --out artifact"],
  ["Set it in the configuration and restart the gateway.", "artifact: artifact"],
  ["Come back here, to “Calibrate”, with rows that the router has not seen.", null],
];

/** The state of /readyz as a word or two for the corner of the page. */
export function statusInWords({ status, calibration, degraded }) {
  if (status === "ready" && calibration && degraded) return { state: "warn", words: "ready, store lost" };
  if (status === "ready" && calibration) return { state: "good", words: "ready" };
  if (status === "ready") return { state: "warn", words: "no router" };
  if (status === "draining") return { state: "warn", words: "stopping" };
  if (status === "unreachable") return { state: "bad", words: "unreachable" };
  return { state: "warn", words: "not calibrated" };
}

/** The next step; nothing if the gateway is ready. */
export function advice({ status, calibration, degraded, reason }) {
  if (status === "unreachable") return notice("bad", el("strong", {}, "The gateway cannot be reached. "), "The page retries every few seconds.");
  if (status === "draining") return notice("warn", el("strong", {}, "This gateway is being stopped. "), "Requests in progress are answered.");
  if (status === "ready" && !calibration) return withoutRouter();
  if (status === "ready" && degraded) {
    return notice("warn", el("strong", {}, "The store cannot be read. "), `Routing continues with calibration ${shortId(calibration)}; calibrating and the history need the store.`);
  }
  if (status === "ready") return null;
  return notice(
    "info",
    el("h2", {}, "Not calibrated yet"),
    el("p", {}, `The gateway says: ${reason}.`),
    el("p", {}, "Next: ", el("a", { href: "#calibrate" }, "upload labelled rows under “Calibrate”"), ". Questions can be routed as soon as they are active."),
  );
}

/** Steps from a gateway without a router to a routing one. */
function withoutRouter() {
  return notice(
    "info",
    el("h2", {}, "No router yet"),
    el("p", {}, "Candidates can be called by name, with keys, limits and metrics; nothing is routed, and there is no guarantee. To route:"),
    el(
      "ol",
      { class: "steps" },
      ROUTER_STEPS.map(([what, command]) => el("li", {}, what, command ? el("pre", { tabindex: "0" }, el("code", {}, command)) : null)),
    ),
  );
}
