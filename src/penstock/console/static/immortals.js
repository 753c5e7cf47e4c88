// Immortals: instances, their replicas and checkpoints, how far their logs are, and how many calls they take.

import { copyable, trouble } from "./dialog.js";
import { h, stacked } from "./dom.js";
import { ask, store } from "./store.js";
import { ago, bytes, count, rate, time } from "./words.js";

let state = {}, timer = null;

async function load(again) {
  const mine = (state = { ...state, busy: true });
  try { mine.found = (await ask("/api/immortals")).instances; mine.error = null; } catch (error) { mine.error = error; }
  mine.at = Date.now();
  again();
  clearTimeout(timer);
  timer = setTimeout(() => { if (location.hash.startsWith("#/immortals")) load(again); }, 3000);
}

const link = (one) => `#/immortals/${encodeURIComponent(one.name)}`;
const primary = (one) => (one.serving ? `replica ${one.serving.replica} at ${one.serving.host}:${one.serving.port}` : "none has served yet");

function replicas(one) {
  const item = (number, more) => h("li", { class: one.serving?.replica === number ? "ok" : "" }, h("b", {}, `replica ${number}`), one.serving?.replica === number ? " serves" : "", h("div", { class: "dim num" }, more));
  const others = one.registrations.map((r) => item(r.replica, `ports ${r.receive_port} and ${r.send_port}${r.active ? ", active standby" : ""}`));
  return h("ul", { class: "steps" }, others.length ? others : item(one.serving?.replica ?? 0, "it was not registered, and so is alone"));
}

const calls = (one) => (one.calls_per_second === null ? "–" : rate(one.calls_per_second));

function ready(again, title) {
  if (!state.busy) load(again);
  const { found, error } = state;
  return [h("div", { class: "head" }, h("h1", { tabindex: "-1" }, title)), error ? trouble(error) : null, !found && !error ? h("div", { class: "loading", role: "status" }, "Asking for the instances…") : null];
}

export const immortals = {
  title: () => "Immortals",
  leave: () => { clearTimeout(timer); state = { found: state.found }; },
  render(again) {
    const shell = ready(again, "Immortals"), { found } = state;
    return [shell,
      found && !found.length ? h("section", { class: "card empty" }, h("h2", {}, "No immortal lives here"), h("p", {}, "An immortal is a service with state that survives any crash: its calls are logged in a journal, and replayed."), h("div", { class: "first" }, copyable(`penstock immortal --help`))) : null,
      found?.length ? h("section", { class: "card" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Instances" }, stacked(h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Instance"), h("th", { scope: "col" }, "Primary"), ["Version", "Replicas", "Checkpoints", "Log", "To replay", "Growth", "Calls"].map((t) => h("th", { scope: "col", class: "n" }, t)))),
        h("tbody", {}, found.map((one) => h("tr", { key: one.name }, h("td", {}, h("a", { href: link(one) }, one.name)), h("td", {}, primary(one)), h("td", { class: "n" }, one.version), h("td", { class: "n" }, Math.max(1, one.registrations.length)), h("td", { class: "n" }, count(one.checkpoint_count)),
          h("td", { class: "n" }, bytes(one.log_end - one.log_begin)), h("td", { class: "n" }, bytes(one.log_since_checkpoint)), h("td", { class: "n" }, one.growth === null ? "–" : `${bytes(Math.max(0, one.growth))}/s`), h("td", { class: "n" }, calls(one))))))))) : null];
  },
};

export const immortal = {
  title: ({ immortal: name }) => name,
  leave: () => { clearTimeout(timer); state = { found: state.found }; },
  render(again, { immortal: name }) {
    const shell = ready(again, name), one = state.found?.find((found) => found.name === name);
    if (!one) return [shell, state.found ? h("section", { class: "card empty" }, h("h2", {}, `There is no instance “${name}” here`), h("p", {}, h("a", { href: "#/immortals" }, "See those that are there"))) : null];
    const pairs = [["Primary", primary(one)], ["Since", one.serving?.at ? ago(one.serving.at * 1e6) : "–"], ["Version", one.version], ["Epoch", count(one.epoch)], ["Log", `${count(one.log_begin)} to ${count(one.log_end)}, ${bytes(one.log_end - one.log_begin)}`], ["A recovery replays", bytes(one.log_since_checkpoint)], ["Log grows by", one.growth === null ? "–" : `${bytes(Math.max(0, one.growth))}/s`], ["Checkpoints hold", bytes(one.checkpoint_bytes)], ["Calls", calls(one)], ["Taken by this primary", count(one.calls)]];
    return [h("div", { class: "crumbs" }, h("a", { href: "#/immortals" }, "Immortals")), shell, h("div", { class: "two" },
      h("section", { class: "card" }, h("header", {}, h("h2", {}, "Checkpoints"), h("span", { class: "dim num" }, count(one.checkpoint_count))), one.checkpoints.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Checkpoints" }, h("table", {},
        h("thead", {}, h("tr", {}, ["Number", "Version", "Log offset", "Size"].map((t) => h("th", { scope: "col", class: "n" }, t)), ["Taken (UTC)", "By"].map((t) => h("th", { scope: "col" }, t)))),
        h("tbody", {}, [...one.checkpoints].reverse().map((entry) => h("tr", { key: entry.number }, h("td", { class: "n" }, count(entry.number)), h("td", { class: "n" }, entry.version), h("td", { class: "n" }, count(entry.log_offset)), h("td", { class: "n" }, bytes(entry.size)), h("td", { class: "nowrap" }, time(entry.at * 1e6).slice(0, 19)), h("td", {}, entry.by)))))) : h("p", { class: "dim" }, "None was taken yet: a recovery replays the whole log.")),
      h("div", {}, h("section", { class: "card" }, h("header", {}, h("h2", {}, "About it")), h("dl", { class: "pairs" }, pairs.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]))),
        h("section", { class: "card" }, h("header", {}, h("h2", {}, "Replicas")), replicas(one), h("p", {}), h("p", { class: "dim" }, "The same on the command line:"), copyable(`penstock immortal inspect ${one.name}${store.session?.options ?? ""}`))))];
  },
};
