/** The keys, in the memory of this module and nowhere else. */

const kept = { data: "", admin: "" };
const changes = new EventTarget();

/** Store these keys and notify listeners; an empty one keeps the current key. */
export function useKeys(data, admin) {
  kept.data = data.trim() || kept.data;
  kept.admin = admin.trim() || kept.admin;
  changes.dispatchEvent(new Event("change"));
}

/** Forget all keys. */
export function forgetKeys() {
  kept.data = kept.admin = "";
  changes.dispatchEvent(new Event("change"));
}

/** The header with a key of this role; an admin key is also valid as a data key. */
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
