/** A sampled request and its distinct answers, each with two buttons for its verdict. */

import { el } from "./dom.js";
import { count, plural } from "./format.js";

/** A request and its answers; `done` gets the verdicts, [names, right or wrong] each, once every answer has one. */
export function sampleView(sample, done) {
  const groups = distinctAnswers(sample);
  const open = groups.filter(({ judged }) => !judged);
  const choices = new Map();

  /** An answer got its verdict, or another one. */
  function chosen(group, correct) {
    choices.set(group, correct);
    if (choices.size === open.length) done(open.map((each) => [each.names, choices.get(each)]));
  }
  return [
    el("section", { class: "card", "aria-labelledby": "request-title" }, el("h2", { id: "request-title" }, "The request"), turnsView(sample.request)),
    el(
      "section",
      { class: "card", "aria-labelledby": "answers-title" },
      el("h2", { id: "answers-title" }, groups.length === 1 ? "The answer" : `${count(groups.length)} different answers`),
      el("div", { class: "grid said" }, groups.map((group, index) => answerView(group, index, chosen))),
    ),
  ];
}

/** The answers without those that equal another one: names, the first one's text, and whether it is judged. */
export function distinctAnswers({ answers, classes, correct }) {
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

/** One answer, and two buttons; the verdict may be changed until every answer has one. */
function answerView(group, index, chosen) {
  const { text, names, judged } = group;
  const button = (label, correct) =>
    el("button", { type: "button", class: "quiet small", "aria-label": `Answer ${index + 1} is ${label.toLowerCase()}`, "aria-pressed": "false", "data-verdict": label.toLowerCase(), onclick: () => choose(correct) }, label);
  const buttons = [button("Right", true), button("Wrong", false)];

  /** Mark the verdict. */
  function choose(correct) {
    buttons.forEach((each, place) => each.setAttribute("aria-pressed", String((place === 0) === correct)));
    chosen(group, correct);
  }
  return el(
    "article",
    { class: "answer" },
    el("p", { class: "text", tabindex: text.length > 400 ? "0" : null }, text),
    el("footer", {}, el("span", { class: "muted" }, names.join(", ")), el("span", { class: "verdict" }, judged ? el("span", { class: "muted" }, "labelled already") : buttons)),
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
