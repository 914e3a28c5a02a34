/** Texts for certificates, reasons and errors. */

import { listed, percent } from "./format.js";

/** What an activation by id costs. */
export const VOID_UNTIL_NEXT = "Its certificates are void until the next calibration: it is chosen after its figures were shown.";

const REASONS = {
  candidate_failed: (name) => `${name} was in the set and gave no usable answer`,
  conditions_differ: (field) => `the candidates are not sent what they were sent for the labelled rows (${field})`,
  not_calibrated: () => "no calibration is active, so the configured fallback was called",
  turn_beyond_sample: () => "a turn later in its conversation than any that is sampled",
  multi_turn_uncalibrated: () => "a later turn of a conversation, for which there are too few rows",
  labelled_conditions: () => "the threshold is that of a part of the rows: labelled with what candidates are sent now, or drawn from this application",
  group_uncalibrated: () => "no row is of the request's group, so the threshold of all rows was used",
  grouping_changed: () => "the groups are formed in another way than for the rows",
  rows_in_clusters: () => "several rows are of one document, user or conversation, and so are not independent",
  later_turn: () => "a later turn of a conversation: the threshold is that of such rows",
  unlabelled_request_kind: () => "no row is of this kind of request",
  query_too_long: () => "the question is longer than the router read of rows",
  request_too_large: () => "the request is larger than any row may be",
  not_drawn: () => "the rows are requests that every candidate could answer, and this one is none",
  no_calibration_for_pool: () => "no row is answered by a candidate that may be called",
  abstained_strongest: () => "the gateway abstained, but the best candidate was called",
  row_scores_unverified: () => "the rows brought router scores of their own, which cannot be verified",
  chosen_by_figures: () => "the calibration was activated by its id, after its figures were shown",
  alpha_picked: () => "the risk level was chosen after these graded or weighted rows were seen",
  training_overlap: () => "calibration rows were training rows of the router",
  alpha_assumed_independent_of_query: () =>
    "you chose the risk level: this assumes that the choice does not depend on the question",
  pool_assumed_independent_of_query: () => "you chose the candidates: this assumes that the choice does not depend on the question",
  score_assumed_independent_of_query: () => "you chose the score: this assumes that the choice does not depend on the question",
  group_assumed_independent_of_query: () => "you chose the group: this assumes that the choice does not depend on the question",
  terms_assumed_independent_of_query: () => "you chose the reference or the rounds: this assumes that the choice does not depend on the question",
  evidence_unavailable: () => "the check of an answer was lost, and could have changed the vote",
  reference_unavailable: () => "the reference could not be called, so it is not known whether its answer is another",
  fan_out_limited: () => "the set was larger than the gateway's limit, so its best were called",
  observe_only: () => "the gateway only observes: one fixed candidate was called",
  pinned: () => "the set of the session's first turn was called",
  leader_streamed: () => "the best candidate alone was called",
  set_unanswered: () => "no candidate of the set answered with a text, a tool call or a refusal",
  above_budget: () => "a budget is above its soft limit, so the cheapest candidate alone was called",
  no_vote: () => "the best candidate alone was called",
  stale: (stream) => stream === "age" ? "the calibration is older than certificates may be here" : `a drift alarm was raised (${stream}) since this calibration became active`,
  candidate_down: (name) => `${name} was down before the set was chosen; the threshold is that of the others`,
  outvoted_candidate_failed: (name) => `${name} failed, but could not have changed the vote`,
  sub_pool_pending_whole_pool: () => "the smaller pool's threshold was not ready yet, so all of it was called",
  alpha_infeasible_whole_pool: () => "there are too few rows for this risk level, so all candidates were called",
  unlabelled_exceeds_alpha_whole_pool: () => "too many rows have no label for this risk level, so all candidates were called",
  router_changed: (name) =>
    name === "unreadable_files" ? "files that decide the router's scores cannot be read" : `${name} decides the router's scores and is not what it was for the rows`,
  store_unreachable: () => "the store cannot be read, so the last calibration that was read decides",
  router_out_whole_pool: () => "the router does not respond, so all candidates were called",
  router_failed_whole_pool: () => "the router gave no scores, so all candidates were called",
};

const REMARKS = {
  calibration_query: "this question is one of the labelled rows that decide such questions",
  repeated_query: "this key has sent this question before",
  unlike_rows: "this question is unlike the questions that this gateway was measured on: at most 1 in 100 of those is so unlike what its router has learned",
};

/** A remark of a certificate as text; an unknown remark is shown as it is. */
export function remarkInWords(remark) {
  return REMARKS[remark] ?? remark;
}

/** A reason of a certificate as text; an unknown reason is shown as it is. */
export function reasonInWords(reason) {
  const [name, ...rest] = reason.split(":");
  const text = REASONS[name];
  return text ? text(rest.join(":")) : reason;
}

/** The guarantee as text. It is never about a single question. */
export function guaranteeInWords({ guarantee, n }) {
  const { risk_target: target, alpha, delta, r, unit, group, pool, trivial } = guarantee;
  if (target === "same_answer") return sameAnswerInWords(guarantee, n);
  if (trivial) return `The whole pool is called, so the set cannot miss a right answer: ${listed(pool)}.`;
  const isTalk = unit === "conversation";
  const drawn = isTalk ? "Of the turns of a conversation like those calibrated on" : "Of queries like those calibrated on";
  const queries = target !== "answerable" ? drawn : `${drawn} that some candidate of the pool can answer`;
  const ofCluster = unit === "cluster" ? " (each of a random document, user or conversation)" : "";
  const inGroup = group === null ? "" : ` in the group “${group}”`;
  const missed =
    target === "paper"
      ? "get a set that misses: without a right candidate or, where no candidate is right, without the null model"
      : r > 1
        ? `get a set with fewer than ${r} right candidates (where fewer are right: without some of those)`
        : "get a set without any candidate that answers right";
  const bound =
    target === "quality"
      ? `the best called candidate falls short of the best of the pool by at most ${alpha} in quality`
      : `at most ${percent(alpha)} ${missed}`;
  const average =
    delta === null
      ? `That is an average over ${isTalk ? "conversations" : "queries"} and over calibrations with as many ${isTalk ? "of them" : "rows"}`
      : `That holds for this calibration with probability ${percent(1 - delta)}, over the choice of its rows`;
  const picked =
    guarantee.alpha_basis === "band" || guarantee.alpha_basis === "declared"
      ? ` If the risk level was picked by its outcome on those rows, ${percent(guarantee.risk_band)} holds instead, with probability ${percent(1 - guarantee.risk_band_delta)}.`
      : "";
  return `${queries}${ofCluster}${inGroup}, ${bound}. ${average} (${n.toLocaleString("en")} count here).${picked} It says nothing about this one question, and not that the vote is right.`;
}

/** A level that the configuration serves, and the bound that holds for it. */
export function servedInWords({ application, alpha, bound, advice }) {
  const whose = application === null ? "" : ` for “${application}”`;
  if (bound === null) return `A risk level of ${percent(alpha)} is served${whose}, and no bound holds for it.`;
  const how = bound.confidence === null ? "on average over calibrations" : `with probability ${percent(bound.confidence)}`;
  const next = advice === null ? "" : ` To get the smaller bound: ${advice}.`;
  return `A risk level of ${percent(alpha)} is served${whose}: at most ${percent(bound.value)} holds, ${how}.${next}`;
}

/** The promise of an answer in rounds. */
function sameAnswerInWords({ alpha, reference, equality, trivial }, n) {
  const whose = reference === "vote" ? "the whole pool's vote" : reference;
  if (trivial) return `At this risk level everything is called, so the answer is that of ${whose}.`;
  return `Of requests like those sampled, at most ${percent(alpha)} get an answer that differs from that of ${whose} (equal means: ${equality}). That is an average over requests and over calibrations with as many rows (${n.toLocaleString("en")} count here). It says nothing about this one request, and not that ${whose} is right.`;
}

const STOPS = {
  certified: "The estimated chance of another answer, or of a miss, was below the limit, so no further candidate was asked.",
  all_called: "The last round was reached, so the promise is kept for certain.",
  failure: "A candidate failed, so all that were left were asked at once.",
  slow: "A round took longer than usual, so all that were left were asked at once.",
  deadline: "Half of the time was over, so all that were left were asked at once.",
  no_answer: "Nothing that was said could be returned, so all that were left were asked at once.",
  unchecked: "The check of an answer was lost, so all that were left were asked at once.",
  broken_off: "The reference's stream broke off within its answer, so nothing else could be sent.",
};

/** Why no further round was called. */
export function stopInWords(stopped) {
  return STOPS[stopped] ?? "The request ended before the calls did.";
}

const CALLS = {
  upstream_model_missing: "has lost its model",
  upstream_timeout: "did not answer in time",
  upstream_unavailable: "cannot be reached",
  upstream_rate_limited: "takes no more calls for now",
  upstream_rejected: "refused the request",
  upstream_auth_error: "refused the gateway's key",
  upstream_disconnected: "did not finish its answer",
  upstream_empty: "answered without a text",
  upstream_encoding: "compressed its answer",
  upstream_error: "failed",
  upstream_invalid_response: "gave an answer that cannot be read",
  upstream_overloaded: "gets no more calls for now: too many are under way",
  upstream_protocol_error: "does not speak HTTP as it should",
  upstream_redirect: "redirected the call",
  upstream_response_too_large: "sent too large an answer",
  upstream_tls_error: "has no valid TLS",
};

/** Why a call failed. */
export function failureInWords(kind) {
  return CALLS[kind] ?? `failed (${kind})`;
}

/** What to do about an error, in addition to the gateway's message. */
export function adviceFor(error) {
  switch (error.code) {
    case "invalid_api_key":
      return "Enter the key under “Keys”, above.";
    case "forbidden":
      return error.message.startsWith("admin endpoints are off")
        ? "Set an admin key for the gateway and restart it."
        : "Another key is needed: see “Keys”, above.";
    case "not_calibrated":
      return "Upload labelled rows under “Calibrate”.";
    case "not_found":
      return "If the gateway has a separate admin port, open this page there.";
    case "unreachable":
      return "Is the gateway running? The page retries automatically.";
    default:
      return "";
  }
}

const STREAMS = {
  largest_score: "Largest router score",
  mean_score: "Mean router score",
  set_size: "Set size",
  embedding: "Embedding",
  critical_score: "Critical scores",
  risk: "Judged losses",
};

/** What a stream of the drift detection measures. */
export function streamInWords(name) {
  return STREAMS[name] ?? name;
}

/** An amount of money in its currency; "about" where it is estimated. */
export function amountInWords({ cost, estimated }, currency) {
  const digits = cost.toLocaleString("en", { maximumSignificantDigits: 3 });
  return `${estimated ? "about " : ""}${digits} ${currency}`;
}

/** A message as a sentence. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
