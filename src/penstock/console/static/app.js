// The shell: which page is shown, the bar, the navigation, and drawing anew when something changes.

import { connectors } from "./connectors.js";
import { dead } from "./dead.js";
import { problem } from "./dialog.js";
import { h, patch, say } from "./dom.js";
import { immortal, immortals } from "./immortals.js";
import { journal, journals } from "./journals.js";
import { log, trace } from "./log.js";
import { overview, sorted, stateOf } from "./overview.js";
import { pipeline } from "./pipeline.js";
import { record } from "./record.js";
import { sink } from "./sink.js";
import { spark } from "./spark.js";
import { begin, store, subscribe } from "./store.js";
import { tapPage } from "./tap.js";

const ICONS = {
  overview: "M3 12h4l3-8 4 16 3-8h4",
  journals: "M4 6h16M4 12h16M4 18h16",
  immortals: "M12 12c-2-3-4-4-6-4a4 4 0 0 0 0 8c2 0 4-1 6-4s4-4 6-4a4 4 0 0 1 0 8c-2 0-4-1-6-4z",
  connectors: "M9 3v5M15 3v5M7 8h10v3a5 5 0 0 1-10 0zM12 16v5",
  sun: "M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6 7 7M17 17l1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8",
  moon: "M20 14.5A8 8 0 1 1 9.5 4a6.5 6.5 0 0 0 10.5 10.5z",
  spark: "M13 2 5 14h6l-1 8 9-13h-6z",
};
const icon = (name) => h("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "2", "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, h("path", { d: ICONS[name] }));

const PAGES = [["", "overview", "Overview"], ["journals", "journals", "Journals"], ["connectors", "connectors", "Connectors"], ["immortals", "immortals", "Immortals"], ["spark", "spark", "Spark"]];
const ROUTES = [
  [/^$/, overview, () => ({})],
  [/^journals$/, journals, () => ({})],
  [/^journals\/([^/]+)$/, journal, ([name]) => ({ journal: name })],
  [/^connectors$/, connectors, () => ({})],
  [/^immortals$/, immortals, () => ({})],
  [/^immortals\/([^/]+)$/, immortal, ([name]) => ({ immortal: name })],
  [/^spark$/, spark, () => ({})],
  [/^p\/([^/]+)$/, pipeline, ([name]) => ({ name })],
  [/^p\/([^/]+)\/sink\/([^/]+)$/, sink, ([name, one]) => ({ name, sink: one })],
  [/^p\/([^/]+)\/log$/, log, ([name]) => ({ name })],
  [/^p\/([^/]+)\/trace\/(\d+)$/, trace, ([name, offset]) => ({ name, offset })],
  [/^p\/([^/]+)\/dead$/, dead, ([name]) => ({ name })],
  [/^p\/([^/]+)\/tap$/, tapPage, ([name]) => ({ name })],
  [/^p\/([^/]+)\/record$/, record, ([name]) => ({ name })],
];

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  for (const [pattern, page, named] of ROUTES) {
    const found = pattern.exec(path);
    if (found) return { page, path, params: { ...named(found.slice(1).map(decodeURIComponent)), query } };
  }
  return { page: overview, path: "", params: { query: "" } };
}

let current = route(), drawn = null;

function theme() {
  const dark = (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  return h("button", { class: "plain", "aria-label": dark ? "Use light colours" : "Use dark colours", title: dark ? "Light" : "Dark", onclick: () => {
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", dark ? "light" : "dark"); } catch { /* it holds until the page is closed */ }
    draw();
  } }, icon(dark ? "sun" : "moon"));
}

function bar() {
  const live = store.ended ? ["idle", "ended"] : !store.connected ? ["bad", "no connection"] : store.place.problem ? ["bad", "no broker"] : ["ok", "live"];
  const session = store.session;
  return [h("a", { class: "brand", href: "#/" }, h("img", { src: "/favicon.svg", width: 26, height: 26, alt: "" }), "Penstock"), h("span", { class: "place", title: session?.place }, session?.place ?? ""), h("span", { class: "grow" }),
    h("span", { class: "live" }, h("span", { class: `dot ${live[0]}` }), h("span", {}, live[1])), session ? h("span", { class: "who" }, session.user, session.role === "viewer" ? " (looks only)" : "") : null, theme(),
    session?.logout ? h("button", { class: "plain", onclick: async () => { await fetch("/logout", { method: "POST", headers: { "X-Penstock-Csrf": session.csrf } }); location.href = "/login"; } }, "Log out") : null];
}

function nav() {
  const here = current.path;
  const link = (path, content) => h("a", { href: `#/${path}`, "aria-current": (path ? here === path || here.startsWith(`${path}/`) : here === "") ? "page" : null }, content);
  return h("div", { class: "in" }, h("ul", {}, PAGES.map(([path, picture, text]) => h("li", {}, link(path, [icon(picture), text])))),
    store.pipelines.size ? h("div", { class: "pipes" }, h("h2", {}, "Pipelines"), h("ul", {}, sorted().slice(0, 30).map((view) => h("li", { key: view.name }, link(`p/${encodeURIComponent(view.name)}`, [h("span", { class: `dot ${stateOf(view)[1]}` }), h("span", { class: "name" }, view.name)]))))) : null);
}

function banner() {
  if (store.ended) return h("div", { class: "note warn", role: "status" }, h("b", {}, "The console has ended"), ", or the run that it was beside. What you see is from before. This page goes on by itself when there is a console again.");
  if (store.session && !store.connected && store.ready) return h("div", { class: "note bad", role: "alert" }, h("b", {}, "The console does not answer."), " What you see is from before. This page goes on by itself when it is back.");
  if (store.place.problem) return h("div", { class: "note bad", role: "alert" }, h("b", {}, "The journals cannot be reached: "), store.place.problem, " What you see is from before; this page goes on by itself.");
  return null;
}

const told = new Map();
function announce() {
  for (const view of store.pipelines.values()) {
    const now = view.tone === "bad" ? view.trouble?.[0]?.replace(/, [\d,]+ behind$/, "") : ""; // how far changes all the time
    if (now && told.get(view.name) !== now && told.has(view.name)) say(`${view.name}: ${now}`);
    told.set(view.name, now);
  }
}

/** Of a page that is left open behind others, the title is what is seen. */
function entitle() {
  const bad = [...store.pipelines.values()].filter((view) => view.tone === "bad" || view.unreadable).length;
  document.title = `${bad ? `(${bad} in trouble) ` : ""}${current.page.title(current.params)} – Penstock`;
}

function draw() {
  entitle();
  announce();
  if (document.visibilityState === "hidden") return;
  patch(document.getElementById("bar"), bar());
  patch(document.getElementById("nav"), nav());
  const main = document.getElementById("main");
  const fresh = drawn !== location.hash;
  if (fresh) main.replaceChildren();
  drawn = location.hash;
  let content;
  try { content = current.page.render(draw, current.params); } catch (error) { console.error(error); content = problem(error); }
  patch(main, h("div", { key: "banner" }, banner()), h("div", { key: "page" }, content));
}

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  current.page.leave?.();
  current = route();
  draw();
  scrollTo(0, 0);
  (document.querySelector("#main h1") ?? document.getElementById("main")).focus({ preventScroll: true });
});

try { const kept = localStorage.getItem("theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* as the system has it */ }
subscribe(draw);
addEventListener("resize", () => draw());
addEventListener("visibilitychange", () => draw());
setInterval(draw, 5000);
begin().catch((error) => patch(document.getElementById("main"), problem(error)));
