/** Label: sampled requests whose answers wait for a verdict, one at a time, one click an answer. */

import { ApiError, getJson, postJson } from "./api.js";
import { keyWanted } from "./calibrate.js";
import { byId, el, fill, notice, say } from "./dom.js";
import { count, plural } from "./format.js";
import { hasKey, onKeys } from "./keys.js";
import { adviceFor, sentence } from "./words.js";

const PAGE = 20; // samples that are read at once

/** Wire the tab; it reads samples when it comes to the front. */
export function startLabel() {
  const body = byId("label-body");
  let samples = [];
  let waiting = 0;
  let visible = false;

  onKeys(() => visible && load());

  /** Read the samples that wait, and show the first. */
  async function load() {
    if (!hasKey("admin")) {
      fill(body, keyWanted("Requests of live traffic are shown to admins only."));
      return;
    }
    try {
      const found = await getJson(`shadow/waiting?limit=${PAGE}`, "admin");
      waiting = found.waiting;
      samples = found.data.filter((sample) => distinctAnswers(sample).some(({ judged }) => !judged));
      if (samples.length > 0) next();
      else fill(body, notice("good", "No sampled request waits for a label."));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const advice = adviceFor(error);
      fill(body, notice("info", sentence(error.message), advice ? el("p", {}, advice) : null));
    }
  }

  /** Show the next sample; read more if none is left of those that were read. */
  function next() {
    const sample = samples.shift();
    if (sample === undefined) load();
    else fill(body, sampleView(sample, waiting, done));
  }

  /** A sample has all its verdicts. */
  function done() {
    waiting -= 1;
    say(`Noted. ${plural(waiting, "request")} left.`);
    next();
  }

  return {
    /** Told when the tab comes to the front or leaves it. */
    shown(now) {
      if (now && !visible) load();
      visible = now;
    },
  };
}

/** A request and its distinct answers; `done` is called once each has a verdict. */
function sampleView(sample, waiting, done) {
  const groups = distinctAnswers(sample);
  let left = groups.filter(({ judged }) => !judged).length;

  /** An answer got its verdict. */
  function judged() {
    left -= 1;
    if (left === 0) done();
  }
  return [
    el("p", { class: "muted" }, `${plural(waiting, "request")} ${waiting === 1 ? "waits" : "wait"} for a label${sample.application ? `; this one is of ${sample.application}` : ""}.`),
    el("section", { class: "card", "aria-labelledby": "request-title" }, el("h2", { id: "request-title" }, "The request"), turnsView(sample.request)),
    el(
      "section",
      { class: "card", "aria-labelledby": "answers-title" },
      el("h2", { id: "answers-title" }, groups.length === 1 ? "The answer" : `${count(groups.length)} different answers`),
      el("div", { class: "grid said" }, groups.map((group, index) => answerView(sample.decision_id, group, index, judged))),
    ),
  ];
}

/** The answers without those that equal another one: names, the first one's text, and whether it is judged. */
function distinctAnswers({ answers, classes, correct }) {
  const groups = new Map();
  for (const [name, text] of Object.entries(answers)) {
    if (text === null) continue; // it is wrong already
    const key = classes[name] ?? `text ${text}`;
    if (!groups.has(key)) groups.set(key, { text, names: [], judged: true });
    const group = groups.get(key);
    group.names.push(name);
    group.judged &&= name in correct;
  }
  return [...groups.values()];
}

/** One answer, and two buttons. */
function answerView(decision, { text, names, judged: known }, index, judged) {
  const place = el("span", { class: "verdict" });
  const button = (label, correct) =>
    el("button", { type: "button", class: "quiet small", "aria-label": `Answer ${index + 1} is ${label.toLowerCase()}`, onclick: () => tell(correct) }, label);

  /** Send the verdict on the candidates that gave this answer. */
  async function tell(correct) {
    fill(place, el("span", { class: "muted" }, "sending"));
    try {
      await postJson("feedback", "admin", { decision_id: decision, correct: Object.fromEntries(names.map((name) => [name, correct])) });
      fill(place, el("span", { class: "muted" }, correct ? "right" : "wrong"));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      fill(place, el("span", { class: "muted", role: "alert" }, error.message), error.code === "conflict" ? null : [button("Right", true), button("Wrong", false)]);
      if (error.code !== "conflict") return;
    }
    judged();
  }
  if (known) fill(place, el("span", { class: "muted" }, "labelled already"));
  else fill(place, button("Right", true), button("Wrong", false));
  return el(
    "article",
    { class: "answer" },
    el("p", { class: "text", tabindex: text.length > 400 ? "0" : null }, text),
    el("footer", {}, el("span", { class: "muted" }, names.join(", ")), place),
  );
}

/** The turns of a request of any API, then its tools. */
function turnsView(request) {
  const tools = request.tools ?? request.functions;
  return el(
    "div",
    { class: "turns" },
    turnsOf(request).map(({ role, text }) => el("div", { class: "turn" }, el("span", { class: "muted" }, role), el("p", { class: "text", tabindex: text.length > 400 ? "0" : null }, text))),
    tools?.length ? el("details", {}, el("summary", {}, plural(tools.length, "tool")), el("p", { class: "text" }, JSON.stringify(tools, null, 2))) : null,
  );
}

/** Role and text of each turn. */
function turnsOf({ messages, input, prompt, instructions }) {
  const given = messages ?? (Array.isArray(input) ? input : [{ role: "user", content: input ?? prompt }]);
  const turns = given.map((turn) => ({ role: turn.role ?? turn.type ?? "", text: textOf(turn) }));
  return instructions ? [{ role: "system", text: instructions }, ...turns] : turns;
}

/** The text of a turn; what is no text as JSON, and images as a word. */
function textOf(turn) {
  const { content } = turn;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(turn);
  return content.map((part) => (typeof part === "string" ? part : (part.text ?? (/image/.test(part.type) ? "[image]" : JSON.stringify(part))))).join("\n");
}
