// One pipeline: its graph, its sinks, its namespaces, its last hour.

import { chart } from "./charts.js";
import { actOn, copyable } from "./dialog.js";
import { h } from "./dom.js";
import { graph } from "./graph.js";
import { lastRun, link, stateChip, troubles } from "./overview.js";
import { store } from "./store.js";
import { ago, bytes, count, rate } from "./words.js";

const TABS = [["", "Pipeline"], ["log", "Log"], ["dead", "Dead letters"], ["tap", "Live tap"], ["record", "Record"]];

/** The head that all pages of a pipeline share. */
export function top(name, tab, ...more) {
  const view = store.pipelines.get(name);
  const dead = view ? view.nodes?.reduce((n, node) => n + (node.dead_letters ?? 0), view.bad ?? 0) : 0;
  return [
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, name), view ? stateChip(view) : null, ...more),
    h("div", { class: "tabs", role: "navigation", "aria-label": `Pages of ${name}` }, TABS.map(([path, text]) =>
      h("a", { href: `#/p/${encodeURIComponent(name)}${path ? `/${path}` : ""}`, "aria-current": path === tab ? "page" : null },
        path === "dead" && dead ? `${text} (${count(dead)})` : text))),
  ];
}

export function missing(name, sink) {
  const view = store.pipelines.get(name);
  if (view?.unreadable) return [top(name, ""), h("p", { class: "note bad" }, view.unreadable)];
  if (view?.nodes && sink) return [top(name, ""), h("section", { class: "card empty" }, h("h2", {}, `${name} has no sink “${sink}”`), h("p", {}, h("a", { href: link(view) }, "See those that it has")))];
  return store.ready && !store.place.looking
    ? [h("div", { class: "head" }, h("h1", { tabindex: "-1" }, name)), h("section", { class: "card empty" }, h("h2", {}, `There is no pipeline “${name}” here`), h("p", {}, h("a", { href: "#/" }, "See those that are there")))]
    : h("div", { class: "loading", role: "status" }, "Looking at the pipeline…");
}

function sinks(view) {
  const rows = view.nodes.filter((node) => node.kind === "sink");
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, "Sinks")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Sinks" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Sink", "State"].map((t) => h("th", { scope: "col" }, t)),
        [["Offset", "wide-only"], ["Delivered", "wide-only"], ["Dropped", "wide-only"], ["Dead", "wide-only"], ["Behind"], ["Oldest it lacks", "wide-only"]].map(([t, when = ""]) => h("th", { scope: "col", class: `n ${when}` }, t)), h("th", { scope: "col" }, h("span", { class: "unseen" }, "Pause or resume")))),
      h("tbody", {}, rows.map((node) => h("tr", { key: node.name },
        h("td", {}, h("a", { href: link(view, `sink/${encodeURIComponent(node.name)}`) }, node.name), node.what ? h("span", { class: "dim" }, ` ${node.what}`) : null),
        h("td", {}, h("span", { class: `chip ${node.tone}` }, node.state)),
        h("td", { class: "n wide-only" }, count(node.watermark === undefined ? null : node.watermark - 1)), h("td", { class: "n wide-only" }, count(node.delivered)), h("td", { class: "n wide-only" }, count(node.dropped)),
        h("td", { class: "n wide-only" }, count(node.dead)), h("td", { class: "n" }, count(node.lag)), h("td", { class: "n wide-only" }, node.pending_ts ? ago(node.pending_ts) : "–"),
        h("td", { class: "n" }, node.watermark === undefined ? null : h("button", { class: "small", onclick: () => actOn(view.name, { action: node.paused ? "resume" : "pause", sink: node.name }) }, node.paused ? "Resume" : "Pause"))))))));
}

function about(view) {
  const source = view.nodes.find((node) => node.kind === "source");
  const pairs = [
    ["Last run", lastRun(view)], ["File", view.last_run?.file ?? "not recorded"],
    ["Log", `${count(view.log.oldest)} to ${count(Math.max(0, view.log.next - 1))}, ${bytes(view.log.bytes)}${view.log.limit ? ` of ${bytes(view.log.limit)}` : ""}`],
    view.log.first > view.log.oldest ? ["Compacted", `below ${count(view.log.first)}: the newest message of each namespace is kept`] : null,
    view.holder ? ["Holds the log", view.holder] : null, view.readers ? ["Not reading", view.readers] : null,
    view.run?.http ? ["Metrics", h("a", { href: `http://${view.run.http}/metrics`, rel: "noreferrer" }, `http://${view.run.http}/metrics`)] : null,
    ...Object.entries(source?.gauges ?? {}).map(([name, value]) => [name.replaceAll("_", " "), name.endsWith("bytes") ? bytes(value) : count(value)]),
    ...(source?.copies ?? []).map((copy) => [`Copying ${copy.ns}`, `${count(copy.rows)}${copy.of ? ` of about ${count(copy.of)}` : ""} rows, ${rate(copy.rate)}`]),
  ].filter(Boolean);
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, "About it")), h("dl", { class: "pairs" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    view.running ? null : [h("p", {}), h("p", { class: "dim" }, "To run it:"), copyable(`penstock run ${view.last_run?.file ?? "FILE"}${store.session?.options ?? ""}`)]);
}

function namespaces(view) {
  if (!view.namespaces.length) return null;
  const more = view.namespace_count - view.namespaces.length;
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, "Namespaces"), h("span", { class: "dim num" }, count(view.namespace_count))),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Namespaces" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Namespace"), h("th", { scope: "col" }, "Phase"), h("th", { scope: "col", class: "n" }, "Last message"))),
      h("tbody", {}, view.namespaces.map((one) => h("tr", { key: one.ns }, h("td", {}, h("a", { href: link(view, `log?ns=${encodeURIComponent(`^${one.ns.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`)}&back=1`) }, one.ns)), h("td", {}, one.mode), h("td", { class: "n" }, count(one.offset))))))),
    more ? h("p", { class: "dim" }, `and ${count(more)} more`) : null);
}

export const pipeline = {
  title: ({ name }) => name,
  render(_, { name }) {
    const view = store.pipelines.get(name);
    if (!view?.nodes) return missing(name);
    const seen = store.histories[name] ?? {};
    return [top(name, ""), troubles(view), h("section", { class: "card" }, graph(view)),
      sinks(view), h("section", { class: "card" }, h("header", {}, h("h2", {}, "The last hour"), h("span", { class: "dim" }, "as this console has seen it")),
        h("div", { class: "charts" }, chart("read", seen.read ?? []), view.nodes.filter((node) => node.kind === "sink").map((node) =>
          [chart(`${node.name}: delivered`, seen[`rate ${node.name}`] ?? []), chart(`${node.name}: behind`, seen[`lag ${node.name}`] ?? [], "lag")]))),
      h("div", { class: "two" }, about(view), namespaces(view) ?? h("div"))];
  },
};
