/** What certificates, reasons and errors mean, in sentences. */

import { listed, percent } from "./format.js";

const REASONS = {
  candidate_failed: (name) => `${name} was in the set and gave no usable answer`,
  conditions_differ: () => "a system prompt or other decoding parameters than those of the labelled rows",
  multi_turn_uncalibrated: () => "a later turn of a conversation, for which there are too few rows",
  later_turn: () => "a later turn of a conversation: the threshold is that of such rows",
  unlabelled_request_kind: () => "another kind of request than was labelled, so everyone was called",
  query_too_long: () => "the question is longer than any row may be, so everyone was called",
  no_calibration_for_pool: () => "no row is answered by any candidate that may be called, so all of those were",
  abstained_strongest: () => "the gateway abstained, and the best candidate was called all the same",
  row_scores_unverified: () => "the rows brought router scores of their own, which nobody can check",
  training_overlap: () => "calibration rows were training rows of the router",
  alpha_assumed_independent_of_query: () =>
    "you chose the risk level: this supposes that the choice had nothing to do with the question",
  pool_assumed_independent_of_query: () => "you chose the candidates: this supposes that the choice had nothing to do with the question",
  score_assumed_independent_of_query: () => "you chose the score: this supposes that the choice had nothing to do with the question",
  group_assumed_independent_of_query: () => "you chose the group: this supposes that the choice had nothing to do with the question",
  fan_out_limited: () => "the set was larger than the gateway's limit, so its best were called",
  observe_only: () => "the gateway only observes: one fixed candidate was called",
  pinned: () => "the set of the session's first turn was called",
  leader_streamed: () => "the best candidate alone was called",
  no_vote: () => "the best candidate alone was called",
  stale: (stream) => `a drift alarm was raised (${stream}) since this calibration became active`,
  candidate_down: (name) => `${name} was down before the set was chosen; the threshold is that of the others`,
  outvoted_candidate_failed: (name) => `${name} failed, but could not have changed the vote`,
  sub_pool_pending_whole_pool: () => "the smaller pool's threshold was not ready yet, so all of it was called",
  alpha_infeasible_whole_pool: () => "there are too few rows for this risk level, so everyone was called",
  abstention_exceeds_alpha_whole_pool: () => "abstaining alone costs more than this risk level, so everyone was called",
  router_failed_whole_pool: () => "the router gave no scores, so everyone was called",
};

/** A certificate's reason in words; one that is not known stands as it is. */
export function reasonInWords(reason) {
  const [name, ...rest] = reason.split(":");
  const said = REASONS[name];
  return said ? said(rest.join(":")) : reason;
}

/** What the guarantee says of a set that was chosen so. It is never about one question. */
export function guaranteeInWords({ guarantee, n }) {
  const { risk_target: target, alpha, delta, r, group, pool, trivial } = guarantee;
  if (trivial) return `Everyone in the pool is called, so there is nobody whose right answer the set could miss: ${listed(pool)}.`;
  const whom =
    target === "paper"
      ? "Of queries like those calibrated on"
      : "Of queries like those calibrated on that some candidate of the pool can answer";
  const inGroup = group === null ? "" : ` in the group “${group}”`;
  const missed =
    target === "paper"
      ? "get a set that misses: without a right candidate or, where no candidate is right, without room for “nobody”"
      : r > 1
        ? `get a set with fewer than ${r} right candidates (where fewer are right: without some of those)`
        : "get a set that holds none of those who can";
  const average =
    delta === null
      ? "That is an average over queries and over calibrations with as many rows"
      : `That holds for this calibration with probability ${percent(1 - delta)}, over the choice of its rows`;
  return `${whom}${inGroup}, at most ${percent(alpha)} ${missed}. ${average} (${n.toLocaleString("en")} count here). It says nothing about this one question, and not that the vote is right.`;
}

const CALLS = {
  upstream_timeout: "did not answer in time",
  upstream_unavailable: "cannot be reached",
  upstream_rate_limited: "takes no more calls for now",
  upstream_rejected: "refused the request",
  upstream_auth_error: "refused the gateway's key",
  upstream_disconnected: "closed the connection",
  upstream_empty: "answered without a text",
};

/** Why a call gave nothing. */
export function failureInWords(kind) {
  return CALLS[kind] ?? `failed (${kind})`;
}

/** What to do about an error, beside what the gateway says. */
export function adviceFor(error) {
  switch (error.code) {
    case "invalid_api_key":
      return "Give the key under “Keys”, above.";
    case "forbidden":
      return error.message.startsWith("admin endpoints are off")
        ? "Set an admin key where the gateway runs, and start it again."
        : "Another key is needed: see “Keys”, above.";
    case "not_calibrated":
      return "Upload labelled rows under “Calibrate”.";
    case "not_found":
      return "Where the gateway has a socket of its own for admins, open this page there.";
    case "unreachable":
      return "Is it running? The page tries again by itself.";
    default:
      return "";
  }
}

const STREAMS = {
  largest_score: "Largest router score",
  mean_score: "Mean router score",
  set_size: "Set size",
  risk: "Judged losses",
};

/** What a stream of the drift alarms looks at. */
export function streamInWords(name) {
  return STREAMS[name] ?? name;
}

/** A message as a sentence. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
