/** Watch: what the gateways count, and what feedback and alarms say, for as long as the page is open. */

import { ApiError, getText } from "./api.js";
import { coverageView } from "./coverage.js";
import { byId, el, fill, notice } from "./dom.js";
import { driftView } from "./drift.js";
import { historyView } from "./history.js";
import { onKeys } from "./keys.js";
import { Gateways, histogram, parse, quantile, total } from "./metrics.js";
import { trafficView } from "./traffic.js";
import { adviceFor, sentence } from "./words.js";

const POLL_MS = 2000;
const DRIFT_MS = 10_000; // each answer has the gateway write the watch down
const HISTORY_MS = 30_000;
const KEPT = 450; // points of a line: fifteen minutes

const ASKING = new Set(["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/route", "/v1/route"]);

/** Wire the tab; it polls while it is in front and the window can be seen. */
export function startWatch() {
  const gateways = new Gateways();
  const lines = [];
  const coverage = coverageView();
  const drift = driftView();
  const history = historyView();
  const traffic = trafficView(drift.risk);
  const trouble = el("div", { role: "alert" });
  let visible = false;
  let timers = [];
  let polling = false; // answers that come out of order would count backwards
  let said = "";

  fill(byId("watch-body"), trouble, history.view, traffic.view, coverage.view, drift.drift);
  onKeys(() => visible && start());
  document.addEventListener("visibilitychange", () => visible && (document.hidden ? stop() : start()));

  /** Begin, or begin again. */
  function start() {
    stop();
    poll();
    drift.poll();
    coverage.poll();
    history.poll();
    timers = [setInterval(poll, POLL_MS), setInterval(drift.poll, DRIFT_MS), setInterval(coverage.poll, POLL_MS), setInterval(history.poll, HISTORY_MS)];
  }

  /** Leave the gateway alone. */
  function stop() {
    timers.forEach(clearInterval);
    timers = [];
  }

  /** Read the metrics of whichever gateway answers. */
  async function poll() {
    if (polling) return;
    polling = true;
    try {
      const samples = parse(await getText("metrics", "data"));
      const now = performance.now();
      const step = gateways.add(samples, now);
      if (step !== null) {
        lines.push(point(step, Date.now()));
        if (lines.length > KEPT) lines.shift();
      }
      tell();
      traffic.show(gateways, lines);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      tell(sentence(error.message), adviceFor(error));
    } finally {
      polling = false;
    }
  }

  /** Say what is wrong, or that nothing is: once, and not with each poll. */
  function tell(message = "", advice = "") {
    if (message === said) return;
    said = message;
    fill(trouble, message ? notice("bad", message, advice ? el("p", {}, advice) : null) : null);
  }

  return {
    /** Told when the tab comes to the front or leaves it. */
    shown(now) {
      visible = now;
      if (now) start();
      else stop();
    },
  };
}

/** One point of every line, from what a gateway counted since its last answer. */
function point({ seconds, counted }, at) {
  const asked = ({ route }) => ASKING.has(route);
  const overhead = histogram(counted, "racer_overhead_seconds");
  const calls = histogram(counted, "racer_candidate_seconds");
  return {
    at,
    rate: total(counted, "racer_requests_total", asked) / seconds,
    failed: total(counted, "racer_requests_total", (labels) => asked(labels) && Number(labels.status) >= 500) / seconds,
    overhead: [quantile(overhead, 0.5), quantile(overhead, 0.95)],
    calls: [quantile(calls, 0.5), quantile(calls, 0.95)],
  };
}
