// Messages as they pass a node, live. Nothing is changed by looking, and a run does not notice.

import { h } from "./dom.js";
import { pretty } from "./json.js";
import { missing, top } from "./pipeline.js";
import { of, store } from "./store.js";
import { clock, count, counted } from "./words.js";

const MOST = 300;
let tap = { for: "" };

function listen(name, node, again) {
  tap.source?.close();
  const mine = (tap = { for: `${name}/${node}`, rows: [], refused: [], paused: false, problem: null, seen: 0 });
  const view = store.pipelines.get(name);
  const from = view ? Math.max(view.log.oldest, view.log.next - 20) : 0;
  mine.source = new EventSource(`${of(name)}/tap?node=${encodeURIComponent(node)}&from=${from}`);
  mine.source.addEventListener("rows", (event) => {
    const { rows, refused } = JSON.parse(event.data);
    mine.seen += rows.length;
    if (mine.paused) return;
    mine.rows = [...rows.reverse(), ...mine.rows].slice(0, MOST);
    mine.refused = [...Object.entries(refused).reverse(), ...mine.refused].slice(0, 20);
    again();
  });
  mine.source.onopen = () => { mine.problem = null; again(); };
  mine.source.onerror = async () => {
    if (mine.source.readyState !== EventSource.CLOSED) return;
    const answer = await fetch(`${of(name)}/tap?node=${encodeURIComponent(node)}`, { method: "GET" }).catch(() => null);
    const told = answer && !answer.ok ? await answer.json().catch(() => ({})) : {};
    if (answer?.ok) answer.body?.cancel();
    mine.problem = told.error ? `${told.error}${told.hint ? ` (${told.hint})` : ""}` : "The tap was closed.";
    again();
  };
}

export const leaveTap = () => { tap.source?.close(); tap = { for: "" }; };

export const tapPage = {
  title: ({ name }) => `Tap of ${name}`,
  leave: leaveTap,
  render(again, { name, query }) {
    const view = store.pipelines.get(name);
    if (!view?.nodes) return missing(name);
    const source = view.nodes.find((one) => one.kind === "source")?.name ?? "";
    const node = new URLSearchParams(query).get("node") ?? source;
    if (tap.for !== `${name}/${node}`) listen(name, node, again);
    const kinds = { source: "what it reads", function: "what comes out of it", sink: "what goes into it" };
    const kind = view.nodes.find((one) => one.name === node)?.kind;
    return [top(name, "tap"),
      h("div", { class: "tools" }, h("div", { class: "field" }, h("label", { for: "node" }, "Node"), h("select", { id: "node", onchange: (event) => { location.hash = `#/p/${encodeURIComponent(name)}/tap?node=${encodeURIComponent(event.target.value)}`; } },
        view.nodes.map((one) => h("option", { value: one.name, selected: one.name === node }, `${one.name} (${one.kind})`)))),
      h("button", { "aria-pressed": String(tap.paused), onclick: () => { tap.paused = !tap.paused; again(); } }, tap.paused ? "Go on" : "Hold"),
      h("span", { class: "dim num" }, `${kinds[kind] ?? ""}; ${counted(tap.seen, "message")} seen, the newest first`)),
      tap.problem ? h("p", { class: "note warn" }, tap.problem) : null,
      tap.refused.map(([offset, why]) => h("p", { class: "note bad" }, `${node} refused message ${count(Number(offset))}: ${why}`)),
      tap.rows.length ? h("section", { class: "card tapped" }, tap.rows.map((row, at) => h("details", { key: `${row.offset}/${at - tap.rows.length + tap.seen}` }, h("summary", { class: "m" }, h("span", { class: "num" }, count(row.offset)), h("span", {}, `${row.ns}`), h("span", { class: "dim" }, `${row.op} ${clock(row.ts)}`), h("code", {}, row.data.slice(0, 240))), pretty(row.data))))
        : h("section", { class: "card empty" }, h("h2", {}, "Waiting for a message"), h("p", {}, view.running ? "They appear here as they pass." : "The pipeline does not run, so nothing passes."))];
  },
};
