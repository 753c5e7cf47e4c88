// Who did what, and when runs began and ended: the record that every edit leaves.

import { Asked } from "./asked.js";
import { trouble } from "./dialog.js";
import { h, stacked } from "./dom.js";
import { missing, top } from "./pipeline.js";
import { of, store } from "./store.js";
import { time } from "./words.js";

const state = new Asked();
const WORDS = { "run-begin": "run began", "run-end": "run ended", ack: "passed over", mark: "offset set", "dead-replay": "letter replayed", "dead-drop": "letters given up" };

function detail(one) {
  const shown = Object.entries(one.detail ?? {}).filter(([key, value]) => value !== null && !["run", "process"].includes(key));
  return shown.map(([key, value]) => `${key.replaceAll("_", " ")} ${Array.isArray(value) ? value.join(", ") : value}`).join(", ");
}

export const record = {
  title: ({ name }) => `Record of ${name}`,
  render(again, { name }) {
    const view = store.pipelines.get(name);
    if (!view?.nodes) return missing(name);
    const stamp = `${view.running}/${view.nodes.map((node) => `${node.watermark}.${node.generation}.${node.paused}.${node.dead_letters}`)}`;
    state.want(name, stamp, `${of(name)}/audit`, again, 1000);
    const { found, error } = state;
    return [top(name, "record"), error ? trouble(error) : null, !found && !error ? h("div", { class: "loading", role: "status" }, "Reading the record…") : null,
      found && !found.entries.length ? h("section", { class: "card empty" }, h("h2", {}, "Nothing is on record yet")) : null,
      found?.entries.length ? h("section", { class: "card" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Record" }, stacked(h("table", {},
        h("thead", {}, h("tr", {}, ["When (UTC)", "Who", "What", "Sink", "Details"].map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, found.entries.map((one, at) => h("tr", { key: found.entries.length - at }, h("td", { class: "nowrap num" }, time(one.time).slice(0, 19)), h("td", {}, one.who), h("td", {}, WORDS[one.action] ?? one.action), h("td", {}, one.sink ?? "–"), h("td", { class: "dim" }, detail(one))))))))) : null];
  },
};
