// Dead letters by their reasons, each with what it holds; replay and drop.

import { Asked } from "./asked.js";
import { actOn, problem, trouble } from "./dialog.js";
import { h } from "./dom.js";
import { facts, message } from "./messages.js";
import { missing, top } from "./pipeline.js";
import { ask, of, store } from "./store.js";
import { count, time } from "./words.js";

let settled = false;
const state = new Asked(), letters = new Map();

function show(name, number, again) {
  const id = `${name}/${number}`;
  if (letters.has(id)) { letters.delete(id); again(); return; }
  ask(`${of(name)}/dead/${number}`).then((found) => letters.set(id, { found }), (error) => letters.set(id, { error })).then(again);
}

function buttons(name, reason, numbers, which, done) {
  return h("div", { class: "foot" }, reason.source ? h("span", { class: "dim" }, "It cannot be replayed: mend it at the source, then give the letter up.") : h("button", { class: "primary", onclick: () => actOn(name, { action: "replay", numbers }, done) }, `Replay ${which}`),
    h("button", { onclick: () => actOn(name, { action: "drop", numbers }, done) }, `Give ${which} up`));
}

function letter(name, reason, one, done) {
  if (one.error) return problem(one.error);
  const { found } = one, alone = reason.count === 1 || settled;
  return h("div", { class: "letter", key: found.number }, h("h3", {}, `Letter ${found.number}: message ${found.offset < 0 ? "never logged" : count(found.offset)}`), h("p", {}), message(found), h("p", {}), facts(found), h("p", {}),
    alone ? null : buttons(name, reason, [found.number], `letter ${found.number}`, done));
}

function group(name, reason, again) {
  const { numbers } = reason;
  const done = () => { state.forget(); letters.clear(); again(); };
  const which = reason.count === 1 ? "it" : numbers.length < reason.count ? `the first ${count(numbers.length)}` : `all ${count(reason.count)}`;
  return h("div", { class: "reason", key: numbers[0] },
    h("div", {}, h("span", { class: "chip bad" }, count(reason.count)), " ", reason.source ? "found by source " : "refused on the way to ", h("b", {}, reason.sink), reason.node === reason.sink ? "" : [" by ", h("b", {}, reason.node)], h("span", { class: "dim" }, `, ${reason.namespaces.join(", ")}`)),
    h("p", { class: "why" }, reason.error),
    h("p", { class: "dim num" }, reason.first_time === reason.last_time ? time(reason.first_time) : `from ${time(reason.first_time)} to ${time(reason.last_time)}`),
    h("div", { class: "numbers", role: "group", "aria-label": "Letters" }, numbers.slice(0, 60).map((number) => h("button", { class: "small", "aria-expanded": String(letters.has(`${name}/${number}`)), onclick: () => show(name, number, again) }, `letter ${number}`)),
      reason.count > 60 ? h("span", { class: "dim" }, `and ${count(reason.count - 60)} more`) : null),
    numbers.map((number) => letters.get(`${name}/${number}`)).filter(Boolean).map((one) => letter(name, reason, one, done)),
    settled ? null : buttons(name, reason, numbers, which, done));
}

export const dead = {
  title: ({ name }) => `Dead letters of ${name}`,
  render(again, { name }) {
    const view = store.pipelines.get(name);
    if (!view?.nodes) return missing(name);
    state.want(name, `${settled}/${view.bad}/${view.nodes.map((node) => node.dead_letters)}`, `${of(name)}/dead?settled=${settled ? 1 : 0}`, again);
    const { found, error } = state;
    return [top(name, "dead"), h("div", { class: "tools" }, h("button", { "aria-pressed": String(settled), onclick: () => { settled = !settled; again(); } }, settled ? "Only those that are dead" : "Also replayed and given up")),
      error ? trouble(error) : null, !found && !error ? h("div", { class: "loading", role: "status" }, "Reading the letters…") : null,
      found && !found.groups.length ? h("section", { class: "card empty" }, h("h2", {}, "There are no dead letters"), h("p", {}, "What a sink or a function refuses for good is kept here, with its reason, and can be replayed.")) : null,
      found?.groups.length ? h("section", { class: "card" }, found.groups.map((reason) => group(name, reason, again))) : null];
  },
};
