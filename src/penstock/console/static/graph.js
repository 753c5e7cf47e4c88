// The living graph: source, log, functions, sinks; what flows, what lacks, and what stands still.

import { h } from "./dom.js";
import { bytes, count, rate, short } from "./words.js";

const WIDTHS = { source: 146, log: 150, function: 146, sink: 176 };
const HIGH = 100, GAP_X = 48, GAP_Y = 18;
const SMALLEST = 0.72, PHONE = 640, EDGES = 46;
const LOG = "\u0000log";

/** Where each node stands: columns by distance from the source, rows by sink; and the order in which one reads them, each before what it feeds. */
export function layout(view) {
  const source = view.nodes.find((node) => node.kind === "source");
  const nodes = [...view.nodes, { name: LOG, kind: "log" }];
  const edges = view.edges.map(([from, to]) => [from === source?.name ? LOG : from, to]);
  if (source) edges.push([source.name, LOG]);
  const below = new Map(nodes.map((node) => [node.name, edges.filter(([from]) => from === node.name).map(([, to]) => to)]));
  const place = new Map();
  let row = 0;
  const stand = (name, depth) => {
    const known = place.get(name);
    if (known) { known.depth = Math.max(known.depth, depth); return known.row; }
    const mine = { depth, row: 0, turn: place.size, indent: depth };
    place.set(name, mine);
    const rows = (below.get(name) ?? []).map((next) => stand(next, depth + 1));
    mine.row = rows.length ? (Math.min(...rows) + Math.max(...rows)) / 2 : row++;
    return mine.row;
  };
  if (source) stand(source.name, 0);
  const deepest = Math.max(1, ...[...place.values()].map((one) => one.depth));
  for (const node of nodes) {
    if (!place.has(node.name) && node.name !== LOG) place.set(node.name, { depth: deepest, row: row++, turn: place.size, indent: 0 });
    if (node.kind === "sink") place.get(node.name).depth = Math.max(place.get(node.name).depth, deepest);
  }
  const wide = Array.from({ length: deepest + 1 }, (_, depth) => Math.max(0, ...nodes.filter((node) => place.get(node.name)?.depth === depth).map((node) => WIDTHS[node.kind] ?? WIDTHS.sink)));
  const left = wide.map((_, depth) => wide.slice(0, depth).reduce((sum, one) => sum + one + GAP_X, 0));
  for (const node of nodes) {
    const at = place.get(node.name);
    if (at) Object.assign(at, { x: left[at.depth], wide: WIDTHS[node.kind] ?? WIDTHS.sink });
  }
  return { place, edges, deepest, rows: Math.max(row, 1), width: left[deepest] + wide[deepest] };
}

const y = (at) => at.row * (HIGH + GAP_Y);

function flow(view, name, below) {
  const node = view.nodes.find((one) => one.name === name);
  if (node?.kind === "sink") return node.rate ?? 0;
  return Math.max(0, ...(below.get(name) ?? []).map((next) => flow(view, next, below)));
}

function edge(view, from, to, plan, below) {
  const a = plan.place.get(from), b = plan.place.get(to);
  if (!a || !b) return [];
  const x1 = a.x + a.wide, y1 = y(a) + HIGH / 2, x2 = b.x, y2 = y(b) + HIGH / 2, mid = (x2 - x1) / 2;
  const d = y1 === y2 ? `M${x1} ${y1}H${x2}` : `M${x1} ${y1}C${x1 + mid} ${y1} ${x2 - mid} ${y2} ${x2} ${y2}`;
  const node = view.nodes.find((one) => one.name === to);
  const tone = node?.kind === "sink" && (node.tone === "bad" || node.tone === "warn") ? node.tone : "";
  const moves = to === LOG ? (view.rate ?? 0) : flow(view, to, below);
  const parts = [h("path", { class: `edge ${moves > 0 ? "flows" : tone}`, d })];
  if (moves > 0) parts.push(h("path", { class: "drops", d, "--pace": `${Math.max(0.25, 1.6 - Math.log10(1 + moves) * 0.3).toFixed(1)}s` }));
  const label = (text, at) => parts.push(h("text", { x: x2 - GAP_X / 2, y: at }, text));
  if (moves > 0) label(rate(moves), y2 - 9);
  else if (node?.kind === "sink" && node.lag) { label(short(node.lag), y2 - 9); label("behind", y2 + 17); }
  return parts;
}

const figure = (value, word) => h("span", {}, h("b", {}, value), ` ${word}`);

function card(view, node, at, link) {
  const own = node.kind === "log";
  const numbers = [];
  if (own) numbers.push(figure(bytes(view.log.bytes), view.log.limit ? `of ${bytes(view.log.limit)}` : ""));
  else if (node.kind === "sink") {
    numbers.push(figure(rate(node.rate), ""), figure(count(node.lag), "behind"));
    if (node.dropped) numbers.push(figure(short(node.dropped), "dropped"));
    if (node.dead_letters) numbers.push(figure(count(node.dead_letters), "dead"));
  } else if (node.kind === "source") {
    numbers.push(figure(rate(node.rate), ""), figure(count(view.log.next), "read"));
    if (view.bad) numbers.push(figure(count(view.bad), "bad"));
  } else {
    numbers.push(figure(rate(node.rate), ""), figure(short(node.out), "through"));
    if (node.dropped) numbers.push(figure(short(node.dropped), "dropped"));
    if (node.dead) numbers.push(figure(short(node.dead), "refused"));
  }
  const state = own ? `messages ${count(view.log.oldest)} to ${count(Math.max(view.log.next - 1, 0))}` : node.state;
  const href = own ? link("log") : node.kind === "sink" ? link(`sink/${encodeURIComponent(node.name)}`) : link(`tap?node=${encodeURIComponent(node.name)}`);
  return h("a", { class: `node ${own ? "log" : node.tone}`, key: node.name, href, title: node.error ?? (node.gone ? "not in the pipeline file any more" : null),
    "--x": `${at.x}px`, "--n": `${at.wide}px`, "--y": `${y(at)}px`, "--depth": String(at.indent) },
  h("span", { class: "top" }, h("span", { class: "name" }, own ? "commit log" : node.name), h("span", { class: "what", title: own ? null : node.what }, own ? "" : node.what)),
  h("span", { class: "state" }, own ? null : h("span", { class: `dot ${node.tone}` }), state),
  h("span", { class: "nums" }, numbers));
}

/** The graph of a pipeline; the names of nodes lead to their pages. */
export function graph(view) {
  const plan = layout(view);
  const below = new Map([...plan.place.keys()].map((name) => [name, plan.edges.filter(([from]) => from === name).map(([, to]) => to)]));
  const link = (rest) => `#/p/${encodeURIComponent(view.name)}/${rest}`;
  const order = [...view.nodes, { name: LOG, kind: "log" }].filter((node) => plan.place.has(node.name))
    .sort((a, b) => plan.place.get(a.name).turn - plan.place.get(b.name).turn);
  const width = plan.width, height = plan.rows * (HIGH + GAP_Y) - GAP_Y + 14;
  const room = (document.getElementById("main")?.clientWidth ?? 0) - EDGES - 56;
  const scale = innerWidth <= PHONE || room <= 0 ? 1 : Math.min(1, Math.max(SMALLEST, room / width));
  return h("div", { class: "graph", role: "group", tabindex: "0", "aria-label": `The graph of ${view.name}: ${order.length} nodes`, "--tall": `${Math.ceil(height * scale)}px` },
    h("div", { class: "plane", "--w": `${width}px`, "--h": `${height}px`, "--scale": scale.toFixed(3) },
      h("svg", { class: "edges", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, plan.edges.map(([from, to]) => edge(view, from, to, plan, below))),
      order.map((node) => card(view, node, plan.place.get(node.name), link))));
}
