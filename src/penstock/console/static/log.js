// The log page by page: by offset, time, namespace and text; and one message through every node.

import { Asked } from "./asked.js";
import { trouble } from "./dialog.js";
import { h } from "./dom.js";
import { pretty } from "./json.js";
import { facts, message, table } from "./messages.js";
import { link } from "./overview.js";
import { missing, top } from "./pipeline.js";
import { ask, of, store } from "./store.js";
import { count, time } from "./words.js";

const PAGE = 50;
let state = { for: "" };
const open = new Set();

function search(name, query, again) {
  const asked = new URLSearchParams(query);
  if (![...asked.keys()].length) asked.set("back", "1");
  asked.set("count", String(PAGE));
  const mine = (state = { for: `${name}?${query}`, asked, entries: null });
  open.clear();
  load(name, mine, again);
}

async function load(name, mine, again, more = null) {
  const asked = new URLSearchParams(mine.asked);
  if (more !== null) { asked.set("from", String(more)); asked.delete("at"); }
  try {
    const page = await ask(`${of(name)}/log?${asked}`);
    if (mine !== state) return;
    const back = asked.get("back") === "1";
    mine.entries = more === null ? page.entries : back ? [...page.entries, ...mine.entries] : [...mine.entries, ...page.entries];
    mine.page = page;
    mine.looked = (more === null ? 0 : mine.looked) + page.looked;
  } catch (error) { mine.error = error; }
  again();
}

function form(name) {
  const asked = state.asked ?? new URLSearchParams();
  const field = (label, id, attributes, wide = "") => h("div", { class: `field ${wide}` }, h("label", { for: id }, label), h("input", { id, name: id, autocomplete: "off", ...attributes }));
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.target), next = new URLSearchParams();
    for (const id of ["from", "ns", "text"]) if (given.get(id)) next.set(id, given.get(id));
    if (given.get("at")) next.set("at", String(Date.parse(`${given.get("at")}Z`) * 1000));
    if (event.submitter?.value === "back") next.set("back", "1");
    const path = `#/p/${encodeURIComponent(name)}/log?${next}`;
    if (location.hash === path) { state = { for: "" }; dispatchEvent(new HashChangeEvent("hashchange")); } else location.hash = path;
  };
  const at = asked.get("at") ? new Date(Number(asked.get("at")) / 1000).toISOString().slice(0, 19) : "";
  return h("form", { class: "tools", role: "search", onsubmit: submit },
    field("From offset", "from", { inputmode: "numeric", size: "9", value: asked.get("from") ?? "" }), field("From time (UTC)", "at", { type: "datetime-local", step: "1", value: at }),
    field("Namespace (pattern)", "ns", { size: "14", value: asked.get("ns") ?? "" }), field("Text", "text", { type: "search", value: asked.get("text") ?? "" }, "wide"),
    h("button", { class: "primary", value: "forward" }, "Search"), h("button", { value: "back" }, "Newest first"));
}

export const log = {
  title: ({ name }) => `Log of ${name}`,
  render(again, { name, query }) {
    const view = store.pipelines.get(name);
    if (!view?.nodes) return missing(name);
    if (state.for !== `${name}?${query}`) search(name, query, again);
    const { entries, page, error } = state, back = state.asked.get("back") === "1";
    const shown = entries && back ? [...entries].reverse() : entries;
    const more = page && page.more !== null ? h("p", {}, h("button", { onclick: () => load(name, state, again, page.more) }, back ? "Older messages" : "More messages"),
      h("span", { class: "dim" }, `  looked at ${count(state.looked)} so far`)) : null;
    return [top(name, "log"), form(name), error ? trouble(error) : null,
      !entries && !error ? h("div", { class: "loading", role: "status" }, "Reading the log…") : null,
      entries && !entries.length ? h("section", { class: "card empty" }, h("h2", {}, page.current < 0 ? "The log is empty" : "No message fits"), h("p", {}, page.current < 0 ? "It fills as soon as the source gives something." : `${count(state.looked)} messages were looked at; the log has ${count(Math.max(page.oldest, 0))} to ${count(page.current)}.`), more) : null,
      entries?.length ? h("section", { class: "card" }, table(shown, { open, again, wanted: state.asked.get("text") ?? "", trace: (offset) => link(view, `trace/${offset}`) }), h("p", {}), more) : null];
  },
};

const traced = new Asked();
const TONES = { acknowledged: "ok", replayed: "ok", delivered: "ok", passed: "ok", changed: "ok", pending: "warn", dead: "bad", refused: "bad", dropped: "warn", "left out": "warn", "given up": "warn", "skipped by operator": "warn", missed: "bad" };

function stepOf(step) {
  return h("li", { class: TONES[step.outcome] ?? "" }, h("b", {}, step.node), ` ${step.function}: `, h("span", { class: `chip ${TONES[step.outcome] ?? ""}` }, step.outcome),
    step.error ? h("p", {}, step.error) : null, step.outcome === "changed" ? h("details", {}, h("summary", {}, "what came out"), step.out.map((out) => pretty(out.data))) : null);
}

export const trace = {
  title: ({ offset, name }) => `Message ${offset} of ${name}`,
  render(again, { name, offset }) {
    const view = store.pipelines.get(name);
    if (!view?.nodes) return missing(name);
    // Whether each sink has it, not how far it is: that changes all the time.
    const stamp = view.nodes.map((node) => `${node.watermark > Number(offset)}.${node.acked?.includes(Number(offset))}.${node.generation}.${node.dead_letters}`).join();
    traced.want(`${name}/${offset}`, stamp, `${of(name)}/trace/${offset}`, again);
    const { found, error } = traced;
    return [h("div", { class: "crumbs" }, h("a", { href: link(view) }, name), " / ", h("a", { href: link(view, `log?from=${Math.max(0, offset - 10)}`) }, "log")),
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, `Message ${count(Number(offset))}`), h("span", { class: "grow" }),
        Number(offset) > 0 ? h("a", { class: "button", href: link(view, `trace/${Number(offset) - 1}`) }, "← Before") : null, Number(offset) + 1 < view.log.next ? h("a", { class: "button", href: link(view, `trace/${Number(offset) + 1}`) }, "After →") : null),
      error ? trouble(error) : null, !found && !error ? h("div", { class: "loading", role: "status" }, "Following it…") : null,
      found ? h("div", { class: "two" },
        h("section", { class: "card" }, h("header", {}, h("h2", {}, "As the log has it")), found.entry?.data !== undefined ? [message(found.entry), h("p", {}), facts(found.entry)] : h("p", {}, "Compaction has removed it; what became of it is still known.")),
        h("div", {}, found.problem ? h("p", { class: "note warn" }, `What functions make of it is not shown: ${found.problem}`) : null,
          found.sinks.map((one) => h("section", { class: "card", key: one.sink }, h("header", {}, h("h2", {}, h("a", { href: link(view, `sink/${encodeURIComponent(one.sink)}`) }, one.sink)), h("span", { class: `chip ${TONES[one.outcome] ?? ""}` }, one.outcome)),
            h("ul", { class: "steps" }, one.steps.map(stepOf), h("li", { class: TONES[one.outcome] ?? "" }, one.detail)))))) : null];
  },
};
