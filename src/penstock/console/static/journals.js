// Journals: size, rate, replicas, route; brokers, key space and stores; a journal with its fragments.

import { Asked } from "./asked.js";
import { deeds } from "./deeds.js";
import { act, trouble } from "./dialog.js";
import { h } from "./dom.js";
import { ask, store } from "./store.js";
import { bytes, count, counted } from "./words.js";

let state = { for: "" }, health = null, timer = null;

async function load(query, again, mine = (state = { for: query, found: state.found })) {
  try { mine.found = await ask(`/api/journals?${query}`); mine.error = null; } catch (error) { mine.error = error; }
  if (mine !== state) return;
  again();
  clearTimeout(timer);
  timer = setTimeout(() => { if (mine === state && location.hash.startsWith("#/journals")) load(query, again, mine); }, 3000);
}

async function look(again) {
  health = { ...(health ?? {}), at: Date.now() };
  try { health = { at: Date.now(), found: await ask("/api/health") }; } catch (error) { health = { at: Date.now(), error }; }
  again();
}

const chip = (tone, text) => h("span", { class: `chip ${tone}` }, h("span", { class: `dot ${tone}` }), text);

function brokers(found) {
  const cluster = found.cluster, members = cluster?.members ?? found.brokers;
  return members.length ? h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Broker"), ["Primary of", "Replica of"].map((t) => h("th", { scope: "col", class: "n" }, t)))),
    h("tbody", {}, members.map((one) => h("tr", { key: one.name }, h("td", {}, one.name, one.leader ? [" ", chip("ok", "leader")] : null, one.exiting ? [" ", chip("warn", "exiting")] : null, one.endpoint ? h("div", { class: "where" }, one.endpoint) : null), h("td", { class: "n" }, count(one.primary)), h("td", { class: "n" }, count(one.replica)))))) : h("p", { class: "dim" }, "No journal has a broker.");
}

function keyspace(found) {
  const cluster = found.cluster;
  if (cluster) {
    return h("div", {}, h("p", {}, "etcd ", h("code", {}, cluster.etcd.join(", ")), " ", chip(cluster.problem ? "bad" : "ok", cluster.problem ? "does not answer" : "healthy"), cluster.revision ? h("span", { class: "dim num" }, ` revision ${count(cluster.revision)}, ${cluster.prefix}`) : null), cluster.problem ? h("p", { class: "note bad" }, cluster.problem) : null);
  }
  return found.keyspace ? h("p", { class: "dim num" }, `Key space ${found.keyspace.cluster}, revision ${count(found.keyspace.revision)}${found.keyspace.term ? `, term ${found.keyspace.term}` : ""}; answered by ${found.keyspace.answered_by}`) : null;
}

function around() {
  const found = health?.found;
  if (health?.error) return trouble(health.error);
  if (!found) return h("section", { class: "card" }, h("p", { class: "dim", role: "status" }, "Asking brokers and stores…"));
  const unwell = found.cluster?.unwell ?? found.short.map((name) => ({ name, state: "short of replicas" })), many = found.cluster?.unwell_count ?? unwell.length;
  return h("div", { class: "two even" },
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Brokers"), !found.journals ? null : chip(many ? "bad" : "ok", many ? `${counted(many, "journal")} not well` : "all journals are well")), brokers(found), keyspace(found),
      unwell.length ? h("ul", { class: "steps" }, unwell.slice(0, 10).map((one) => h("li", { class: "bad" }, h("a", { href: `#/journals/${encodeURIComponent(one.name)}` }, one.name), `: ${one.state}`))) : null),
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Stores")), found.stores.length ? h("ul", { class: "steps" }, found.stores.map((one) => h("li", { class: one.problem ? "bad" : "ok" }, h("code", {}, one.store), " ", chip(one.problem ? "bad" : "ok", one.problem ? "not healthy" : "healthy"), one.problem ? h("p", {}, one.problem) : null))) : h("p", { class: "dim" }, "No journal names a store.")));
}

/** Who takes appends, and to whom they go from there. */
function route(one) {
  const others = one.members.filter((name) => name !== one.primary);
  return [one.primary ?? "no primary", others.length ? h("span", { class: "dim" }, ` → ${others.join(", ")}`) : null];
}

function rows(found) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Journals" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Journal"), h("th", { scope: "col", class: "n" }, "Size"), ["Rate", "Fragments", "Replicas"].map((t) => h("th", { scope: "col", class: "n wide-only" }, t)), h("th", { scope: "col", class: "wide-only" }, "Route"), h("th", { scope: "col" }, "State"))),
    h("tbody", {}, found.rows.map((one) => h("tr", { key: one.name },
      h("td", {}, h("a", { href: `#/journals/${encodeURIComponent(one.name)}` }, one.name)), h("td", { class: "n" }, bytes(one.bytes)), h("td", { class: "n wide-only" }, one.rate === null ? "–" : `${bytes(Math.max(0, one.rate))}/s`),
      h("td", { class: "n wide-only" }, one.fragments === found.most_fragments ? `${count(one.fragments)}+` : count(one.fragments)), h("td", { class: "n wide-only" }, `${one.members.length} of ${one.replication}`), h("td", { class: "wide-only" }, route(one)),
      h("td", {}, one.problem ? chip("bad", "not served") : one.suspended !== "NONE" ? chip("idle", `suspended (${one.suspended.toLowerCase()})`) : chip(one.consistent ? "ok" : "bad", one.consistent ? "consistent" : "short of replicas")))))));
}

export const journals = {
  title: () => "Journals",
  leave: () => clearTimeout(timer),
  render(again, { query }) {
    if (state.for !== query || !state.found) { if (state.for !== query || !state.busy) { const mine = (state = { for: query, found: state.found, busy: true }); load(query, again, mine); } }
    if (!health || Date.now() - health.at > 4000) look(again);
    const asked = new URLSearchParams(query), { found, error } = state;
    const to = (changes) => { const next = new URLSearchParams(query); for (const [k, v] of Object.entries(changes)) if (v) next.set(k, v); else next.delete(k); return `#/journals?${next}`; };
    return [h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Journals and brokers"), h("span", { class: "grow" }), found ? h("span", { class: "dim num" }, counted(found.total, "journal")) : null),
      error ? trouble(error) : null, around(),
      h("section", { class: "card" }, h("div", { class: "tools" }, h("div", { class: "field wide" }, h("label", { for: "find" }, "Find by name"), h("input", { id: "find", type: "search", value: asked.get("find") ?? "", onchange: (event) => { location.hash = to({ find: event.target.value, from: "" }); } }))),
        error && !found ? null : found ? found.rows.length ? rows(found) : h("div", { class: "empty" }, h("h2", {}, found.total ? "No journal has such a name" : "There are no journals yet"), h("p", {}, found.total ? "" : "A pipeline makes its own with its first run.")) : h("div", { class: "loading", role: "status" }, "Listing the journals…"),
        found && found.found > found.page ? h("div", { class: "tools" }, found.from ? h("a", { class: "button", href: to({ from: String(Math.max(0, found.from - found.page)) }) }, "← Before") : null,
          h("span", { class: "dim num" }, `${count(found.from + 1)} to ${count(found.from + found.rows.length)} of ${count(found.found)}`), found.from + found.page < found.found ? h("a", { class: "button", href: to({ from: String(found.from + found.page) }) }, "More →") : null) : null)];
  },
};

const LOOKED = 4000;
const one = new Asked();

export const journal = {
  title: ({ journal: name }) => name,
  leave: () => clearTimeout(timer),
  render(again, { journal: name }) {
    const moves = store.place.place.includes("://") || [...store.pipelines.values()].some((view) => view.running);
    one.want(name, moves ? Math.floor(Date.now() / LOOKED) : "as it is", `/api/journal?name=${encodeURIComponent(name)}`, again);
    clearTimeout(timer);
    if (moves) timer = setTimeout(again, LOOKED);
    const { found, error } = one, go = (action) => () => act("/api/journals", { action, sink: name }, () => { one.forget(); again(); });
    const pairs = found ? [["Size", bytes(found.bytes)], ["Write head", count(found.head)], ["Primary", found.primary ?? "none"], ["Brokers", found.members.join(", ") || "none"], ["Replicas wanted", count(found.replication)], found.state ? ["State", found.state] : null, ...found.replicas.map((one) => [`${one.zone}/${one.id}`, one.trouble || (one.write_head === null ? "not asked" : `write head ${count(one.write_head)}${one.lag ? `, ${bytes(one.lag)} behind` : ""}`)]), ["Suspended", found.suspended === "NONE" ? "no" : found.suspended.toLowerCase()], ["Stores", found.stores.join(", ") || "none"], found.pipeline ? ["Pipeline", h("a", { href: `#/p/${encodeURIComponent(found.pipeline)}` }, found.pipeline)] : null].filter(Boolean) : [];
    return [h("div", { class: "crumbs" }, h("a", { href: "#/journals" }, "Journals")), h("div", { class: "head" }, h("h1", { tabindex: "-1" }, name)), error ? trouble(error) : null, !found && !error ? h("div", { class: "loading", role: "status" }, "Asking for it…") : null,
      found?.problem ? h("p", { class: "note bad" }, found.problem) : null, found?.faults.map((fault) => h("p", { class: "note bad" }, `${fault.fault}: ${fault.text}`)),
      found ? h("div", { class: "two" }, h("section", { class: "card" }, h("header", {}, h("h2", {}, "Fragments"), h("span", { class: "dim num" }, count(found.fragment_count)), found.faults.length ? chip("bad", "damaged") : chip("ok", "no hole, no overlap")),
        !found.fragments.length ? h("p", { class: "dim" }, "It holds nothing yet.") : h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Fragments" }, h("table", {}, h("thead", {}, h("tr", {}, ["Begin", "End", "Size"].map((t) => h("th", { scope: "col", class: "n" }, t)), ["Stored", "Codec"].map((t) => h("th", { scope: "col" }, t)))),
          h("tbody", {}, [...found.fragments].reverse().map((f) => h("tr", { key: f.begin }, h("td", { class: "n" }, count(f.begin)), h("td", { class: "n" }, count(f.end)), h("td", { class: "n" }, bytes(f.end - f.begin)), h("td", {}, f.stored ? new Date(f.stored * 1000).toISOString().slice(0, 19).replace("T", " ") : "in the spool"), h("td", {}, f.codec.toLowerCase()))))))),
      h("div", {}, h("section", { class: "card" }, h("header", {}, h("h2", {}, "About it")), h("dl", { class: "pairs" }, pairs.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]))),
        h("section", { class: "card" }, h("header", {}, h("h2", {}, "What you can do")), h("div", { class: "acts" }, h("div", { class: "act" }, h("button", { onclick: go("suspend") }, "Suspend"), h("span", {}, "have brokers put it aside while nobody uses it")),
          h("div", { class: "act" }, h("button", { onclick: go("reset-head") }, "Reset head"), h("span", {}, "after all replicas were lost: trust the store")))),
        deeds(found.history, () => ""),
        h("section", { class: "card" }, h("details", {}, h("summary", {}, "Its specification"), h("div", { class: "json" }, h("pre", { class: "raw" }, JSON.stringify(found.spec, null, 2))))))) : null];
  },
};
