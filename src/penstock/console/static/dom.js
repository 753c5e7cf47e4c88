// Elements from calls, and a patch that changes only what differs: focus, open parts and scroll positions stay.

const SVG = "http://www.w3.org/2000/svg";
const svgTags = new Set(["svg", "path", "g", "text", "line", "circle", "rect", "title"]);

/** An element: h("a", {href: "#/", class: "x", onclick: f, "--x": "3px"}, children…). */
export function h(tag, attributes = {}, ...children) {
  const element = svgTags.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) { element[name] = value; (element.handlers ??= {})[name] = value; }
    else if (name.startsWith("--")) { element.style.setProperty(name, value); (element.sizes ??= {})[name] = value; }
    else if (name === "key") element.key = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Make the content of `place` what `fresh` is, touching as little as possible. */
export function patch(place, ...fresh) {
  const holder = document.createElement("div");
  append(holder, fresh);
  children(place, holder);
}

function same(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && a.key === b.key;
}

function children(old, fresh) {
  const wanted = [...fresh.childNodes];
  const keyed = new Map([...old.childNodes].filter((one) => one.key !== undefined).map((one) => [one.key, one]));
  wanted.forEach((next, at) => {
    let here = old.childNodes[at];
    const known = next.key === undefined ? undefined : keyed.get(next.key);
    if (known && known !== here && same(known, next)) { old.insertBefore(known, here ?? null); here = known; }
    if (!here) old.append(next);
    else if (same(here, next)) node(here, next);
    else if (next.key !== undefined) old.insertBefore(next, here);
    else old.replaceChild(next, here);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function node(old, next) {
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== next.data) old.data = next.data; return; }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && name !== "style" && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (name === "style" || (name === "open" && old.nodeName === "DETAILS")) continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const [name, value] of Object.entries(next.sizes ?? {})) {
    if (old.style.getPropertyValue(name) !== value) old.style.setProperty(name, value);
  }
  for (const name of Object.keys(old.handlers ?? {})) if (!next.handlers?.[name]) old[name] = null;
  for (const [name, value] of Object.entries(next.handlers ?? {})) old[name] = value;
  old.handlers = next.handlers;
  if (old.nodeName === "INPUT" || old.nodeName === "SELECT") return;
  children(old, next);
}

/** A table whose rows stand one below the other where it is narrow, each value under its name. */
export function stacked(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, at) => { cell.dataset.label = names[at]; });
  table.classList.add("stack");
  return table;
}

/** Tell somebody who cannot see the page. */
export function say(text) { document.getElementById("said").textContent = text; }

/** A message that goes by itself. */
export function toast(text, tone = "ok") {
  const place = document.getElementById("toasts");
  const note = h("div", { class: `note ${tone}`, role: tone === "bad" ? "alert" : "status" }, h("div", {}, text),
    h("button", { class: "plain small", "aria-label": "Close", onclick: () => note.remove() }, "✕"));
  place.append(note);
  while (place.children.length > 4) place.firstChild.remove();
  if (tone !== "bad") setTimeout(() => note.remove(), 7000);
}
