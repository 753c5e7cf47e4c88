// Spark: the query of each sink, its last batches, and where their time went.

import { h } from "./dom.js";
import { copyable } from "./dialog.js";
import { link, sorted } from "./overview.js";
import { store } from "./store.js";
import { clock, count, counted, took } from "./words.js";

const STEPS = ["stage", "publish", "offsets", "dead letters"];
const ABOUT = { stage: "functions and staging, in Spark's tasks", publish: "the target takes it", offsets: "the offset log moves", "dead letters": "refused messages are kept", other: "planning, Spark itself, and the wait for the batch before" };

const SMALL = new Set(["Messages", "Took"]);

const parts = (batch) => {
  const spent = STEPS.map((step) => batch.steps?.[step] ?? 0);
  return [...spent, Math.max(0, batch.seconds * 1000 - spent.reduce((a, b) => a + b, 0))];
};

function bar(batch, longest) {
  const names = [...STEPS, "other"], values = parts(batch);
  const text = names.map((name, at) => (values[at] >= 1 ? `${name} ${Math.round(values[at])} ms` : "")).filter(Boolean).join(", ");
  return h("div", { class: "bar", role: "img", "aria-label": text, title: text }, values.map((value, at) => (value > 0 ? h("i", { class: `b${at}`, "--part": `${((value / longest) * 100).toFixed(2)}%` }) : null)));
}

function query(view, one) {
  const batches = [...one.batches].reverse().slice(0, 8);
  const longest = Math.max(1, ...batches.map((batch) => batch.seconds * 1000));
  const total = one.batches.reduce((sum, batch) => sum + batch.seconds, 0), rows = one.batches.reduce((sum, batch) => sum + batch.end - batch.begin, 0);
  return h("section", { class: "card", key: one.name }, h("header", {}, h("h2", {}, h("a", { href: link(view, `sink/${encodeURIComponent(one.sink)}`) }, one.name)), h("span", { class: `chip ${one.active ? "ok" : "idle"}` }, one.active ? "active" : "not active"), h("span", { class: "grow" }),
    h("span", { class: "dim num" }, one.batches.length ? `${one.batches.length === 1 ? "one batch" : `the last ${count(one.batches.length)} batches`}: ${counted(rows, "message")}, ${took(total / one.batches.length)}${one.batches.length === 1 ? "" : " each"}` : "")),
  batches.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Batches of ${one.name}` }, h("table", { class: "batches" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Ended (UTC)"), ["Messages", "Delivered", "Dropped", "Dead", "Took"].map((t) => h("th", { scope: "col", class: `n ${SMALL.has(t) ? "" : "wide-only"}` }, t)), h("th", { scope: "col" }, "Where the time went"))),
    h("tbody", {}, batches.map((batch) => h("tr", { key: batch.ended }, h("td", { class: "num" }, clock(batch.ended)), h("td", { class: "n" }, `${count(batch.begin)} to ${count(batch.end - 1)}`), [batch.delivered, batch.dropped, batch.dead].map((n) => h("td", { class: "n wide-only" }, count(n))), h("td", { class: "n" }, took(batch.seconds)), h("td", { class: "times" }, bar(batch, longest))))))) : h("p", { class: "dim" }, "No batch yet: it waits for messages."));
}

function session(view) {
  const spark = view.spark;
  return h("div", { key: view.name }, h("div", { class: "head" }, h("h2", {}, h("a", { href: link(view) }, view.name)), h("span", { class: "dim" }, `Spark ${spark.version}, ${spark.master}, ${spark.app}`), h("span", { class: "grow" }),
    /^https?:/.test(spark.ui ?? "") ? h("a", { class: "button", href: spark.ui, rel: "noreferrer", target: "_blank" }, "Spark’s own page ↗") : h("span", { class: "dim" }, "Spark’s own page is off; ", h("code", {}, "--conf spark.ui.enabled=true"), " switches it on")),
  spark.queries.map((one) => query(view, one)),
  h("div", { class: "legend" }, [...STEPS, "other"].map((step, at) => h("span", {}, h("i", { class: `b${at}` }), `${step}: ${ABOUT[step]}`))), h("p", {}));
}

export const spark = {
  title: () => "Spark",
  render() {
    const views = sorted().filter((view) => view.spark);
    return [h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Spark")), views.map(session),
      !store.ready ? h("div", { class: "loading", role: "status" }, "Looking…") : views.length ? null : h("section", { class: "card empty" }, h("h2", {}, "No Spark session runs"),
        h("p", {}, "A run starts Spark when a sink lacks something. Its queries and batches are shown here while it runs on this machine."), h("div", { class: "first" }, copyable(`penstock run FILE --follow${store.session?.options ?? ""}`)))];
  },
};
