// Who did what to journals and connectors: the record that suspend, reset-head and migrate leave.

import { h } from "./dom.js";
import { time } from "./words.js";

export function deeds(history, subject = (one) => ` ${one.journal}`) {
  if (history?.problem) return h("p", { class: "note warn" }, `Who did what cannot be told: ${history.problem}`);
  if (!history?.deeds.length) return null;
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, "Who did what")), h("ul", { class: "steps" }, history.deeds.map((one) =>
    h("li", { key: `${one.time}/${one.action}` }, h("b", {}, one.action), `${subject(one)}: ${one.outcome}`, h("div", { class: "dim num" }, `${one.who}, ${time(one.time).slice(0, 19)}`)))));
}
