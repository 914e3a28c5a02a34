/** Elements, made and filled with text: no data ever becomes markup. */

/** The element with this id, which must be in the document. */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * An element with attributes and children; texts become text nodes.
 * `on...` attributes are listeners, `true` sets an attribute, null and false leave it out.
 */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

/** An element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Put children in the place of whatever an element held. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** Put a table in the place of one: its frame stays, and with it the focus and how far it was scrolled. */
export function renew(element, made) {
  const frame = element.firstElementChild;
  if (frame?.className === made.className) frame.replaceChildren(...made.childNodes);
  else fill(element, made);
}

/** A position or a length as a share of its container; styles are set by script, never inline. */
export function setShare(element, name, share) {
  element.style.setProperty(name, `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`);
  return element;
}

/** A box that says one thing: `kind` is info, good, warn or bad. */
export function notice(kind, ...children) {
  return el("div", { class: `notice ${kind}` }, ...children);
}

/** A table from titles and rows of cells; a cell is text or an element. The first column names the row. */
export function table(caption, titles, rows) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, titles.map((title) => el("th", { scope: "col" }, title)))),
      el(
        "tbody",
        {},
        rows.map(([first, ...others]) =>
          el("tr", {}, el("th", { scope: "row" }, first), others.map((cell, place) => el("td", { "data-title": titles[place + 1] }, cell))),
        ),
      ),
    ),
  );
}

/** Announce one message to screen readers. */
export function say(text) {
  byId("said").textContent = text;
}

/** Ask whether something is meant; resolves to whether it is. */
export function confirmed(title, text, yes) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
