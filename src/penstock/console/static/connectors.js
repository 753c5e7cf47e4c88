// Connectors: workers, the sessions of programs, how far each of their streams is; and moves to other workers.

import { deeds } from "./deeds.js";
import { act, copyable, prompt, trouble } from "./dialog.js";
import { h, stacked } from "./dom.js";
import { ask, store } from "./store.js";
import { inFlight, transactions } from "./transactions.js";
import { bytes, count, counted, duration } from "./words.js";

let state = {}, timer = null;

async function load(again) {
  const mine = (state = { ...state, busy: true });
  try { const told = await ask("/api/connectors"); mine.found = told.workers; mine.history = told.history; mine.error = null; } catch (error) { mine.error = error; }
  again();
  clearTimeout(timer);
  timer = setTimeout(() => { if (location.hash.startsWith("#/connectors")) load(again); }, 2000);
}

const numbers = (names) => names.map((t) => h("th", { scope: "col", class: "n" }, t));
const words = (names) => names.map((t) => h("th", { scope: "col" }, t));
const byName = (a, b) => a.instance.localeCompare(b.instance) || (a.name || a.id).localeCompare(b.name || b.id, "en", { numeric: true });
const USUAL = "connectors";
const TONES = { streaming: "ok", active: "ok", inactive: "idle", notifying: "busy", negotiating: "busy" };

async function move(instance, from, again) {
  const others = (state.found ?? []).filter((one) => one.answers && one.address !== from.address && one.journals === from.journals).map((one) => one.address);
  const known = others.length ? `; known: ${others.join(", ")}` : "";
  const to = await prompt(`Move instance ${instance}`, `The worker to go to, as HOST:PORT${known}`, others[0] ?? "");
  if (to) act("/api/connectors", { action: "migrate", sink: instance, to, journals: from.journals }, () => load(again));
}

function worker(one, again) {
  const mover = (instance) => h("td", {}, instance && !one.pipeline ? h("button", { class: "small", "aria-label": `Move instance ${instance}`, onclick: () => move(instance, one, again) }, "Move…") : "");
  const sessions = one.sessions.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Sessions of ${one.name}` }, stacked(h("table", {}, h("thead", {}, h("tr", {}, words(["Session", "Program", "Instance", "State"]), numbers(["Credits", "Messages", "Dropped", "Bytes"]), words(["Move"]))),
    h("tbody", {}, one.sessions.map((s) => h("tr", { key: s.number }, h("td", {}, s.number, h("div", { class: "where" }, s.peer)), h("td", {}, s.program), h("td", {}, s.instance), h("td", {}, s.state), h("td", { class: "n" }, count(s.credits)), h("td", { class: "n" }, count(s.messages)), h("td", { class: "n" }, count(s.dropped)), h("td", { class: "n" }, bytes(s.bytes)), mover(s.instance))))))) : h("p", { class: "dim" }, "No program is connected.");
  const streams = one.streams.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Streams of ${one.name}` }, stacked(h("table", {}, h("thead", {}, h("tr", {}, words(["Stream", "Instance", "State", "Owner"]), numbers(["Last seen", "Last acknowledged"]), words(["Move"]))),
    h("tbody", {}, [...one.streams].sort(byName).map((s) => h("tr", { key: `${s.instance}/${s.id}` }, h("td", {}, s.name || s.id, s.name ? h("div", { class: "where" }, s.id) : null), h("td", {}, s.instance), h("td", {}, h("span", { class: `chip ${TONES[s.state] ?? "idle"}` }, s.ended ? "ended" : s.state)), h("td", {}, s.session === null ? "–" : `session ${s.session}`), h("td", { class: "n" }, count(s.last_seen)), h("td", { class: "n" }, count(s.last_acked)), mover(s.instance))))))) : null;
  return h("section", { class: "card", key: `${one.journals}/${one.address}` }, h("header", {}, h("h2", {}, one.name), h("span", { class: `chip ${one.answers ? "ok" : "bad"}` }, h("span", { class: `dot ${one.answers ? "ok" : "bad"}` }), one.answers ? "answers" : "does not answer"), h("span", { class: "dim" }, one.address, one.pipeline ? `, the source of pipeline ${one.pipeline}` : one.journals === USUAL ? "" : `, journals ${one.journals}/INSTANCE`), h("span", { class: "grow" }),
    h("span", { class: "dim num" }, one.started ? `up for ${duration(Date.now() / 1000 - one.started)}, ${counted(one.counters.messages ?? 0, "message")}` : "")), h("h3", {}, "Sessions"), sessions, streams ? [h("h3", {}, `Streams (${count(one.stream_count)})`), streams] : null,
  one.recent.length ? h("details", {}, h("summary", {}, "What went wrong lately"), h("ul", {}, one.recent.map((text) => h("li", {}, text)))) : null);
}

export const connectors = {
  title: () => "Connectors",
  leave: () => { clearTimeout(timer); state = { found: state.found, history: state.history }; },
  render(again) {
    if (!state.busy) load(again);
    const { found, history, error } = state, options = store.session?.options ?? "";
    return [h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Connectors")), error ? trouble(error) : null, !found && !error ? h("div", { class: "loading", role: "status" }, "Asking the workers…") : null,
      transactions(), found && !found.length && !inFlight().length ? h("section", { class: "card empty" }, h("h2", {}, "No connector worker runs here"), h("p", {}, "A worker takes streams from programs in any language into journals. To start one:"), h("div", { class: "first" }, copyable(`penstock connector worker${options}`))) : null,
      found?.map((one) => worker(one, again)), deeds(history, (one) => ` ${one.journal.startsWith(`${USUAL}/`) ? one.journal.slice(USUAL.length + 1) : one.journal}`)];
  },
};
