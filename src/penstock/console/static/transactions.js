// Two-phase commits of connector sinks that are on their way: which messages, how far, who voted how.

import { h } from "./dom.js";
import { link } from "./overview.js";
import { store } from "./store.js";
import { ago, count } from "./words.js";

const TONES = { staging: "busy", voted: "ok", decided: "ok", telling: "busy", aborted: "bad" };

export function inFlight() {
  return [...store.pipelines.values()].flatMap((view) => (view.nodes ?? []).filter((node) => node.transaction).map((node) => ({ view, node, ...node.transaction })));
}

function votes(one) {
  const given = Object.entries(one.votes);
  if (!given.length) return h("span", { class: "dim" }, one.state === "staging" ? "none yet" : "nothing was sent");
  return h("ul", { class: "votes" }, given.map(([worker, vote]) => h("li", {}, `${worker} `, h("span", { class: `chip ${vote ? "ok" : "bad"}` }, vote ? "commit" : "abort"))));
}

export function transactions() {
  const found = inFlight();
  if (!found.length) return null;
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, "Transactions in flight")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Transactions in flight" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Sink", "Messages", "State", "Since", "Votes", "Transaction"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, found.map((one) => h("tr", { key: `${one.view.name}/${one.node.name}` },
        h("td", {}, h("a", { href: link(one.view, `sink/${encodeURIComponent(one.node.name)}`) }, `${one.view.name}/${one.node.name}`)), h("td", { class: "nowrap num" }, `${count(one.begin)} to ${count(one.end - 1)}`),
        h("td", {}, h("span", { class: `chip ${TONES[one.state] ?? "idle"}` }, one.state)), h("td", { class: "nowrap" }, ago(one.since)), h("td", {}, votes(one)), h("td", {}, h("code", {}, one.id))))))));
}
