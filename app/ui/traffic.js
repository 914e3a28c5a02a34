/** Traffic: tiles, charts, set sizes and candidates, from /metrics only. */

import { chart, window } from "./charts.js";
import { el, fill, renew, table } from "./dom.js";
import { count, duration, number, percent, plural } from "./format.js";
import { histogram, total } from "./metrics.js";

const LONGEST_S = 60; // the last bound of the gateway's histograms; larger values are not resolved

/** The view, with a place for what is known of the risk, and how to show the latest answers in it. */
export function trafficView(risk) {
  const tiles = el("div", { class: "tiles" });
  const rate = el("div", { class: "chart" });
  const time = el("div", { class: "chart" });
  const sizes = el("div", { class: "chart" });
  const candidates = el("div", {});
  const met = el("p", { class: "hint" });
  const charts = el(
    "div",
    { class: "grid two" },
    figure("Requests a second", rate),
    figure("How long it takes: half, and 95 %, take at most", time),
    figure("How many models were chosen", sizes),
    risk,
  );
  const who = el("section", { class: "card", "aria-labelledby": "who-title" }, el("h2", { id: "who-title" }, "Models"), candidates);
  const view = el("div", { class: "stack" }, tiles, charts, who, met);

  /** Show what all gateways counted, and the lines so far. */
  function show(gateways, lines) {
    const all = gateways.together();
    fill(tiles, tileTexts(all, lines.at(-1)).map(([name, value, hint]) => el("div", { class: "tile", title: hint ?? null }, el("span", { class: "fact" }, value), el("span", { class: "muted" }, name))));
    renew(candidates, candidateTable(all));
    met.textContent =
      gateways.size > 1
        ? `${gateways.size} gateways answered here. Counts are of all of them together; a point of a line is what one of them counted between two of its own answers.`
        : "Counts are since the gateway began; lines since this page was opened.";
    drawRate(rate, lines);
    drawTime(time, lines);
    drawSizes(sizes, all);
  }
  return { view, show };
}

/** A chart with its title. */
function figure(title, place) {
  return el("figure", { class: "card" }, el("figcaption", {}, title), place);
}

/** Candidates that the gateways know. */
function names(all) {
  return [...new Set((all.get("racer_candidate_up") ?? []).map(({ labels }) => labels.candidate))];
}

/** The figures on top: name, value, and what it is. */
function tileTexts(all, last) {
  const decided = total(all, "racer_set_size_count");
  const called = total(all, "racer_set_size_sum");
  const pool = names(all).length;
  const none = "–";
  return [
    ["requests a second", last ? number(last.rate, 1) : none, "of whatever asks candidates or routes, between the last two answers"],
    ["questions", count(decided), "decisions since the gateways began"],
    [`models chosen, of ${pool}`, decided ? number(called / decided) : none],
    ["calls saved", decided && pool ? percent(1 - called / (decided * pool), 0) : none, "compared with calling the whole pool"],
    ["refused", decided ? percent(total(all, "racer_abstained_total") / decided) : none, "no candidate was likely right"],
    ["without a guarantee", decided ? percent(total(all, "racer_void_certificates_total") / decided) : none, "when the set was chosen"],
  ];
}

/** How each candidate is, and what its calls took. */
function candidateTable(all) {
  const rows = names(all).map((name) => {
    const mine = ({ candidate }) => candidate === name;
    const gateways = (all.get("racer_candidate_up") ?? []).filter(({ labels }) => mine(labels));
    const up = gateways.filter(({ value }) => value === 1).length;
    const calls = total(all, "racer_candidate_calls_total", mine);
    const failed = calls - total(all, "racer_candidate_calls_total", (labels) => mine(labels) && ["ok", "cancelled"].includes(labels.outcome));
    const answered = total(all, "racer_candidate_seconds_count", mine);
    const out = total(all, "racer_candidate_replicas", (labels) => mine(labels) && labels.state === "out");
    const state = up === gateways.length ? ["on", "up"] : up === 0 ? ["off", "down"] : ["off", `down at ${gateways.length - up} of ${gateways.length}`];
    return [
      el("span", { class: "name", title: name }, name),
      el("span", { class: `chip ${state[0]}` }, state[1] + (out && state[0] === "on" ? `, ${plural(out, "replica")} out` : "")),
      count(calls),
      calls ? percent(failed / calls) : "–",
      count(total(all, "racer_candidate_retries_total", mine)),
      answered ? duration((1000 * total(all, "racer_candidate_seconds_sum", mine)) / answered) : "–",
    ];
  });
  if (rows.length === 0) return el("p", { class: "muted" }, "Nothing is known of models yet.");
  return table("Models and their calls", ["Model", "State", "Calls", "Failed", "Tried again", "Mean time"], rows);
}

/** Times of points, for an axis. */
const times = (lines) => lines.map(({ at }) => new Date(at));

/** Requests a second, with failures below. */
function drawRate(element, lines) {
  const last = lines.at(-1);
  const label = last ? `Requests a second: ${number(last.rate, 1)} now, ${number(last.failed, 1)} of them failing.` : "Requests a second: the first two answers are awaited.";
  chart(element, label, (colour) => ({
    data: [
      { x: times(lines), y: lines.map(({ rate }) => rate), name: "asked", mode: "lines", line: { color: colour("accent"), width: 2 }, fill: "tozeroy", fillcolor: colour("wash"), hovertemplate: "%{y:.1f}" },
      { x: times(lines), y: lines.map(({ failed }) => failed), name: "failed", mode: "lines", line: { color: colour("bad"), width: 2 }, hovertemplate: "%{y:.1f}" },
    ],
    x: { type: "date", range: window(times(lines)) },
    y: { range: lines.some(({ rate }) => rate > 0) ? undefined : [0, 1] },
  }));
}

/** The gateway's own time, and that of calls. */
function drawTime(element, lines) {
  const ms = (seconds) => (seconds === null ? null : 1000 * Math.min(seconds, LONGEST_S));
  const words = (seconds) => (seconds === null ? "" : seconds > LONGEST_S ? `over ${duration(1000 * LONGEST_S)}` : `≤ ${duration(1000 * seconds)}`);
  const last = lines.findLast(({ overhead }) => overhead[1] !== null);
  const label = last ? `The gateway's own time: 95 % ${words(last.overhead[1])}.` : "Times: nothing was asked yet.";
  const line = (key, i, name, color, dash) => ({
    x: times(lines),
    y: lines.map((each) => ms(each[key][i])),
    name,
    mode: "lines+markers",
    connectgaps: true,
    marker: { size: 3 },
    line: { color, width: 2, dash },
    text: lines.map((each) => words(each[key][i])),
    hovertemplate: "%{text}",
  });
  chart(element, label, (colour) => ({
    data: [
      line("overhead", 0, "in the gateway: half", colour("accent"), "solid"),
      line("overhead", 1, "in the gateway: 95 %", colour("accent"), "dot"),
      line("calls", 0, "calls of models: half", colour("mark"), "solid"),
      line("calls", 1, "calls of models: 95 %", colour("mark"), "dot"),
    ],
    x: { type: "date", range: window(times(lines)) },
    y: { type: "log", title: "ms", dtick: 1, range: last ? undefined : [0, 3] },
  }));
}

/** How many sets had how many candidates. */
function drawSizes(element, all) {
  const buckets = histogram(all, "racer_set_size");
  const most = buckets.reduce((last, [, own], i) => (own > 0 ? Math.max(i, last) : last), 3);
  const shown = buckets.slice(0, most + 1);
  const titles = shown.map(([bound], i) => bucketTitle(buckets[i - 1]?.[0] ?? -1, bound));
  const label = `Set sizes: ${shown.map(([, own], i) => `${titles[i]}: ${count(own)}`).join(", ")}.`;
  chart(element, label, (colour) => ({
    data: [{ type: "bar", x: titles, y: shown.map(([, own]) => own), marker: { color: colour("accent") }, hovertemplate: "%{y} sets" }],
    x: { type: "category", title: "models" },
    hovermode: "closest",
    bargap: 0.35,
    y: { range: shown.some(([, own]) => own > 0) ? undefined : [0, 1] },
  }));
}

/** What a bucket between two bounds holds: "3", "7–8", "more than 32". */
function bucketTitle(below, bound) {
  if (bound === Infinity) return `over ${below}`;
  return bound - below <= 1 ? String(bound) : `${below + 1}–${bound}`;
}
