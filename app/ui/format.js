/** Numbers and times as people read them. */

/** A share as percent: 0.1 is "10 %", 0.005 is "0.5 %". */
export function percent(share, digits = 1) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const shown = (100 * share).toFixed(digits).replace(/\.0+$/, "");
  return `${shown} %`;
}

/** Two shares as a range: "12.2–17.9 %". */
export function range(low, high) {
  return `${percent(low).replace(" %", "")}–${percent(high)}`;
}

/** A count with separators. */
export function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

/** A number with at most this many digits after the point. */
export function number(value, digits = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Milliseconds or seconds. */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 0)} s`;
}

/** Bytes in the unit that fits. */
export function bytes(size) {
  if (size < 1024) return `${size} B`;
  const [value, unit] = size < 2 ** 20 ? [size / 1024, "KiB"] : [size / 2 ** 20, "MiB"];
  return `${value.toFixed(value < 10 ? 1 : 0)} ${unit}`;
}

/** A moment in the reader's own time zone. */
export function moment(iso) {
  return new Date(iso).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** How long ago a moment was, in its largest whole unit: "3 hours ago". */
export function age(iso) {
  const minutes = Math.max(0, Math.floor((Date.now() - new Date(iso)) / 60_000));
  if (minutes < 1) return "just now";
  const [value, unit] = minutes < 60 ? [minutes, "minute"] : minutes < 2880 ? [minutes / 60, "hour"] : [minutes / 1440, "day"];
  return `${plural(Math.floor(value), unit)} ago`;
}

/** The first characters of an id, which tell calibrations apart. */
export function shortId(id) {
  return id.replace(/^answers-/, "").slice(0, 12);
}

/** Names in a sentence: "a", "a and b", "a, b and c". */
export function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** A count with its noun: "1 row", "2 rows". */
export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
