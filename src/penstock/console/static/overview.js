// Everything at a glance: each pipeline as a living graph, trouble first, the last hour as small charts.

import { chart } from "./charts.js";
import { copyable } from "./dialog.js";
import { h } from "./dom.js";
import { graph } from "./graph.js";
import { store } from "./store.js";
import { ago, bytes, count, counted, rate } from "./words.js";

const ORDER = ["bad", "warn", "busy", "ok", "idle"];
const FEW = 6;
const MOST = 60;
let wanted = "";

export const link = (view, rest = "") => `#/p/${encodeURIComponent(view.name)}${rest ? `/${rest}` : ""}`;

export function sorted() {
  return [...store.pipelines.values()].sort((a, b) => ORDER.indexOf(a.tone) - ORDER.indexOf(b.tone) || a.name.localeCompare(b.name));
}

export function stateOf(view) {
  if (view.unreadable) return ["cannot be read", "bad"];
  if (view.tone === "bad") return [view.running ? "running, with trouble" : "stopped, wants you", "bad"];
  if (view.running) return [view.run.phase === "running" ? "running" : view.run.phase, view.tone === "warn" ? "warn" : "ok"];
  return ["not running", view.tone === "warn" ? "warn" : "idle"];
}

export function stateChip(view) {
  const [text, tone] = stateOf(view);
  return h("span", { class: `chip ${tone}` }, h("span", { class: `dot ${tone}` }), text);
}

export function troubles(view) {
  if (view.unreadable) return h("p", { class: "note bad" }, view.unreadable);
  if (!view.trouble?.length) return null;
  const sinks = view.nodes.filter((node) => node.kind === "sink");
  return h("ul", { class: "trouble" }, view.trouble.map((text) => {
    const sink = sinks.find((node) => text.startsWith(`${node.name} `) && (node.tone === "bad" || node.tone === "warn"));
    const tone = sink ? sink.tone : "warn";
    return h("li", {}, h("span", { class: `dot ${tone}` }), sink ? h("a", { href: link(view, `sink/${encodeURIComponent(sink.name)}`) }, text) : h("span", {}, text));
  }));
}

export const worstLag = (view) => Math.max(0, ...(view.nodes ?? []).map((node) => node.lag ?? 0));

export function hour(view, plain = false) {
  const seen = store.histories[view.name] ?? {};
  const lags = Object.entries(seen).filter(([name]) => name.startsWith("lag ")).map(([, values]) => values);
  const longest = Math.max(0, ...lags.map((values) => values.length));
  const lag = Array.from({ length: longest }, (_, at) => {
    const here = lags.map((values) => values[at - longest + values.length]).filter((value) => value !== null && value !== undefined);
    return here.length ? Math.max(...here) : null;
  });
  return [chart("read", seen.read ?? [], "rate", plain), chart("furthest behind", lag, "lag", plain)];
}

function full(view) {
  return h("section", { class: "card", key: view.name, "aria-label": `Pipeline ${view.name}` },
    h("header", {}, h("h2", {}, h("a", { href: link(view) }, view.name)), stateChip(view), h("span", { class: "grow" }),
      h("span", { class: "dim num" }, view.log ? `${counted(view.log.next, "message")} logged, ${bytes(view.log.bytes)}` : "")),
    troubles(view), view.nodes ? graph(view) : null, h("div", { class: "charts" }, hour(view)));
}

function row(view) {
  const trouble = view.unreadable ?? view.trouble?.[0];
  return h("a", { class: "card pipe", key: view.name, href: link(view) },
    h("span", {}, h("span", { class: "name" }, view.name, stateChip(view)), trouble ? h("span", { class: "sub" }, trouble) : null),
    h("span", { class: "sub num" }, view.log ? `${rate(view.rate)}, ${count(worstLag(view))} behind, ${bytes(view.log.bytes)}` : ""),
    hour(view, true));
}

function nothing() {
  const { beside } = store.session ?? {};
  if (beside) return h("section", { class: "card empty", role: "status" }, h("h2", {}, `${beside} is starting`), h("p", {}, "Its graph appears here as soon as it has its log."));
  const options = store.session?.options ?? "";
  return h("section", { class: "card empty" },
    h("h2", {}, "No pipeline has run here yet"),
    h("p", {}, "A pipeline appears as soon as it runs for the first time; this page shows it without being loaded again."),
    h("ol", { class: "first" },
      h("li", {}, h("p", {}, "See what can be read and written:"), copyable("penstock about")),
      h("li", {}, h("p", {}, "Write a pipeline file to edit:"), copyable("penstock init sqlite file shop.py")),
      h("li", {}, h("p", {}, "Carry it out:"), copyable(`penstock run shop.py${options}`))));
}

function facts(views) {
  const bad = views.filter((view) => view.tone === "bad" || view.unreadable).length;
  const dead = views.reduce((sum, view) => sum + (view.nodes ?? []).reduce((n, node) => n + (node.dead_letters ?? 0), view.bad ?? 0), 0);
  const fact = (value, word, tone = "") => h("div", { class: `fact ${tone}` }, h("b", {}, value), h("span", {}, word));
  return h("div", { class: "facts" }, fact(count(views.length), views.length === 1 ? "pipeline" : "pipelines"),
    fact(count(views.filter((view) => view.running).length), "running"),
    fact(count(bad), "in trouble", bad ? "bad" : ""),
    fact(rate(views.reduce((sum, view) => sum + (view.rate ?? 0), 0)), "read"),
    fact(count(Math.max(0, ...views.map(worstLag))), "furthest behind"),
    fact(count(dead), dead === 1 ? "dead letter" : "dead letters", dead ? "warn" : ""));
}

export const overview = {
  title: () => "Overview",
  render(again) {
    const views = sorted(), looking = store.place.looking;
    if (!store.ready || (looking && !views.length)) return h("div", { class: "loading", role: "status" }, "Looking at the pipelines…");
    const found = views.filter((view) => view.name.toLowerCase().includes(wanted.toLowerCase()));
    const many = views.length > FEW;
    return [
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Overview"), h("span", { class: "grow" }),
        many ? h("input", { type: "search", placeholder: "Find a pipeline", "aria-label": "Find a pipeline", value: wanted, oninput: (event) => { wanted = event.target.value; again(); } }) : null),
      views.length ? facts(views) : null,
      looking ? h("p", { class: "dim num", role: "status" }, `Still looking: ${count(looking[0])} of ${counted(looking[1], "pipeline")} seen.`) : null,
      views.length ? null : store.place.problem ? null : nothing(),
      many ? h("div", { class: "rows" }, found.slice(0, MOST).map(row)) : found.map(full),
      found.length > MOST ? h("p", { class: "dim" }, `${found.length - MOST} more: find them by name.`) : null,
    ];
  },
};

export function lastRun(view) {
  const run = view.last_run;
  if (!run) return "never";
  if (view.running) return `since ${ago(run.began).replace(" ago", "")}, process ${run.pid} on ${run.host}`;
  if (!run.ended) return `${ago(run.beat)}, on ${run.host}; it did not end by itself`;
  return `${ago(run.began)}, on ${run.host}; exit code ${run.exit_code ?? 0}`;
}
