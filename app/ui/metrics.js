/** Prometheus text, read; and what happened between two answers of the same gateway. */

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const PROCESS = "racer_set_size_created"; // when the process made its metrics: no two have the same
const FORGOTTEN_MS = 120_000; // a gateway that has not answered for so long is gone

/** Samples by name: each with its labels and its value. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    const value = match[3] === "+Inf" ? Infinity : Number(match[3]);
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({ labels, value });
  }
  return found;
}

/** The sum of a metric's samples, or of those whose labels fit. */
export function total(samples, name, fits = () => true) {
  return (samples.get(name) ?? []).reduce((sum, each) => (fits(each.labels) ? sum + each.value : sum), 0);
}

/** A histogram's buckets, each without those below it: [upper bound, count], ascending. */
export function histogram(samples, name) {
  const byBound = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    byBound.set(bound, (byBound.get(bound) ?? 0) + value);
  }
  let below = 0;
  return [...byBound].sort(([a], [b]) => a - b).map(([bound, upTo]) => {
    const own = upTo - below;
    below = upTo;
    return [bound, own];
  });
}

/** The bound below which this share of a histogram lies; null where it is empty. */
export function quantile(buckets, share) {
  const all = buckets.reduce((sum, [, own]) => sum + own, 0);
  if (all <= 0) return null;
  let seen = 0;
  for (const [bound, own] of buckets) {
    seen += own;
    if (seen >= share * all) return bound;
  }
  return null;
}

/** The samples of one moment less those of another, by name and labels. */
function difference(after, before) {
  const known = new Map();
  for (const [name, list] of before) for (const { labels, value } of list) known.set(name + JSON.stringify(labels), value);
  const found = new Map();
  for (const [name, list] of after) {
    found.set(name, list.map(({ labels, value }) => ({ labels, value: value - (known.get(name + JSON.stringify(labels)) ?? 0) })));
  }
  return found;
}

/**
 * The gateways behind one address, told apart by when their processes began.
 *
 * A poll may meet any of them. What a poll counted is compared with the last answer of the same
 * process, so nothing is ever seen to go back.
 */
export class Gateways {
  #known = new Map();

  /** How many have answered lately. */
  get size() {
    return this.#known.size;
  }

  /**
   * Take an answer in. What it counted since the same gateway's last one, and in how many seconds;
   * null for a gateway's first answer, or where processes cannot be told apart.
   */
  add(samples, now) {
    const id = samples.get(PROCESS)?.[0]?.value;
    for (const [each, { at }] of this.#known) if (now - at > FORGOTTEN_MS) this.#known.delete(each);
    const before = this.#known.get(id);
    this.#known.set(id, { samples, at: now });
    if (id === undefined || before === undefined || now <= before.at) return null;
    return { seconds: (now - before.at) / 1000, counted: difference(samples, before.samples) };
  }

  /** The last answers of all of them together, as one. */
  together() {
    const found = new Map();
    for (const { samples } of this.#known.values()) {
      for (const [name, list] of samples) found.set(name, [...(found.get(name) ?? []), ...list]);
    }
    return found;
  }
}
