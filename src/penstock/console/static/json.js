// A message as a person reads it: every value with its type, numbers as they are written, text that can be found.

import { h } from "./dom.js";

/** Read JSON without changing it: numbers keep their digits, keys their order, repeated keys stay. */
export function read(text) {
  let at = 0;
  const space = () => { while (" \t\n\r".includes(text[at]) && at < text.length) at += 1; };
  const fail = () => { throw new SyntaxError(`not JSON at character ${at}`); };
  const string = () => {
    const begin = at;
    at += 1;
    while (text[at] !== '"') { if (at >= text.length) fail(); at += text[at] === "\\" ? 2 : 1; }
    at += 1;
    return JSON.parse(text.slice(begin, at));
  };
  const list = (end, one) => {
    const found = [];
    at += 1;
    space();
    while (text[at] !== end) {
      found.push(one());
      space();
      if (text[at] === ",") { at += 1; space(); } else if (text[at] !== end) fail();
    }
    at += 1;
    return found;
  };
  const value = () => {
    space();
    const sign = text[at];
    if (sign === '"') return { type: "text", value: string() };
    if (sign === "{") {
      return { type: "object", members: list("}", () => {
        space();
        if (text[at] !== '"') fail();
        const key = string();
        space();
        if (text[at] !== ":") fail();
        at += 1;
        return [key, value()];
      }) };
    }
    if (sign === "[") return { type: "list", items: list("]", value) };
    const word = /^(?:true|false|null|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/.exec(text.slice(at, at + 400));
    if (!word) fail();
    at += word[0].length;
    if (word[0] === "null") return { type: "null", raw: "null" };
    if (word[0] === "true" || word[0] === "false") return { type: "boolean", raw: word[0] };
    return { type: /[.eE]/.test(word[0]) ? "decimal" : "whole number", raw: word[0] };
  };
  const found = value();
  space();
  if (at < text.length) fail();
  return found;
}

const SPECIAL = { $date: "time", $oid: "id", $binary: "binary", $numberDecimal: "decimal", $numberLong: "whole number", $uuid: "uuid",
  $numberDouble: "decimal", $regularExpression: "pattern", $timestamp: "timestamp" };

function marked(text, wanted) {
  if (!wanted) return [text];
  const parts = [], low = text.toLowerCase(), find = wanted.toLowerCase();
  let from = 0, to;
  while ((to = low.indexOf(find, from)) >= 0) { parts.push(text.slice(from, to), h("mark", {}, text.slice(to, to + find.length))); from = to + find.length; }
  return [...parts, text.slice(from)];
}

const type = (word) => h("span", { class: "t" }, word);

function shown(value, wanted, depth) {
  if (value.type === "object") {
    const [only] = value.members;
    if (value.members.length === 1 && SPECIAL[only[0]]) {
      const inner = only[1].type === "text" ? only[1].value : only[1].raw ?? "";
      return [h("span", { class: "x" }, marked(inner || "…", wanted)), type(SPECIAL[only[0]])];
    }
    return nested(value.members.map(([key, one]) => h("div", {}, h("span", { class: "k" }, marked(key, wanted)), ": ", shown(one, wanted, depth + 1))),
      "{", "}", `${value.members.length} ${value.members.length === 1 ? "field" : "fields"}`, depth);
  }
  if (value.type === "list") {
    return nested(value.items.map((one) => h("div", {}, shown(one, wanted, depth + 1))), "[", "]", `${value.items.length} of them`, depth);
  }
  if (value.type === "text") return [h("span", { class: "s" }, '"', marked(value.value, wanted), '"'), type("text")];
  return [h("span", { class: value.type === "null" || value.type === "boolean" ? "w" : "n" }, marked(value.raw, wanted)), value.type === "null" ? "" : type(value.type)];
}

function nested(children, left, right, few, depth) {
  if (!children.length) return [left + right];
  return h("details", { open: depth < 3 }, h("summary", {}, left, h("span", { class: "few" }, ` ${few} ${right}`)), h("div", { class: "j" }, children), right);
}

/** A message's text, pretty; what is not JSON is shown as it is. */
export function pretty(text, wanted = "") {
  if (!text) return h("div", { class: "json dim" }, "no content");
  try { return h("div", { class: "json", tabindex: "0", role: "region", "aria-label": "The message" }, shown(read(text), wanted, 0)); }
  catch { return h("div", { class: "json", tabindex: "0", role: "region", "aria-label": "The message" }, h("pre", { class: "raw" }, marked(text, wanted))); }
}
