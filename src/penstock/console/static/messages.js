// Messages in a table: one line each, all of it when opened.

import { h } from "./dom.js";
import { pretty } from "./json.js";
import { count, time } from "./words.js";

export function facts(entry) {
  const pairs = [["Offset", count(entry.offset)], ["Logged", `${time(entry.ts)} UTC`], ["Namespace", entry.ns], ["Operation", entry.op], ["Phase", entry.mode],
    entry.key !== null && entry.key !== undefined ? ["Key", entry.key] : null, entry.old_key ? ["Key before", entry.old_key] : null].filter(Boolean);
  return h("dl", { class: "pairs" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function message(entry, wanted = "") {
  return [pretty(entry.data, wanted), entry.cut ? h("p", { class: "dim" }, `Only the first part of ${count(entry.cut)} characters is shown.`) : null];
}

/** Rows of a log; `open` is a set of offsets, `again` draws anew. */
export function table(entries, { open, again, here, trace, wanted = "", fine = false }) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Messages" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "n" }, "Offset"), h("th", { scope: "col", class: "wide-only" }, "Logged (UTC)"), h("th", { scope: "col" }, "Namespace"), h("th", { scope: "col", class: "wide-only" }, "Op"), h("th", { scope: "col" }, "Message"))),
    h("tbody", {}, entries.map((entry) => {
      const isOpen = open.has(entry.offset);
      const toggle = () => { if (isOpen) open.delete(entry.offset); else open.add(entry.offset); again(); };
      const row = h("tr", { class: `row ${entry.offset === here ? `here ${fine ? "fine" : ""}` : ""}`, key: `m${entry.offset}`, "data-open": isOpen, onclick: toggle },
        h("td", { class: "n" }, h("button", { class: "small", "aria-expanded": String(isOpen), "aria-label": `Message ${entry.offset}`, onclick: (event) => { event.stopPropagation(); toggle(); } }, count(entry.offset))),
        h("td", { class: "nowrap num wide-only" }, time(entry.ts).slice(0, 19)), h("td", {}, entry.ns), h("td", { class: "wide-only" }, entry.op), h("td", { class: "fills" }, isOpen ? null : h("span", { class: "text" }, entry.data.slice(0, 220))));
      return isOpen ? [row, h("tr", { key: `o${entry.offset}` }, h("td", { colspan: 5, class: "full" }, message(entry, wanted),
        h("p", {}), facts(entry), trace ? h("p", {}, h("a", { href: trace(entry.offset) }, "Trace it through every node")) : null))] : row;
    }))));
}
