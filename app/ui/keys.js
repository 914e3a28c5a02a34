/** The keys, in the memory of this module and nowhere else. */

const kept = { data: "", admin: "" };
const changes = new EventTarget();

/** Keep these keys, and tell whoever listens; where one is empty the one that is held stays. */
export function useKeys(data, admin) {
  kept.data = data.trim() || kept.data;
  kept.admin = admin.trim() || kept.admin;
  changes.dispatchEvent(new Event("change"));
}

/** Hold none any more. */
export function forgetKeys() {
  kept.data = kept.admin = "";
  changes.dispatchEvent(new Event("change"));
}

/** The header that shows a key of this role; an admin key opens what a data key does. */
export function authorization(role) {
  const key = role === "admin" ? kept.admin : kept.data || kept.admin;
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Whether there is a key of this role. */
export function hasKey(role) {
  return kept[role] !== "";
}

/** Call this whenever keys change. */
export function onKeys(listener) {
  changes.addEventListener("change", listener);
}
