// A sink, above all one in trouble: what failed, the message, where it stands, what happens next, what can be done.

import { chart } from "./charts.js";
import { Asked } from "./asked.js";
import { actOn, prompt, trouble } from "./dialog.js";
import { h } from "./dom.js";
import { message, facts, table } from "./messages.js";
import { link } from "./overview.js";
import { missing } from "./pipeline.js";
import { of, store } from "./store.js";
import { ago, bytes, count, counted, time } from "./words.js";

let find = "";
const held = new Asked(), open = new Set();

function onRestart(node, view) {
  if (node.detached) return "Nothing: it is detached until it is set to an offset. It lacks messages that the log has let go.";
  if (node.paused) return "Nothing: it is paused, also in the next run, until it is resumed.";
  if (!node.lag) return "It waits for the next message.";
  if (node.careful > node.watermark) {
    return `Messages ${count(node.watermark)} to ${count(node.careful - 1)} are delivered one at a time, since a batch that held them was refused. The first that is refused stops the sink again; those behind it are not sent.`;
  }
  return `${counted(node.lag, "message")}, from ${count(node.watermark)} on, ${node.lag === 1 ? "is" : "are"} delivered in batches${view.running ? "" : " with the next run"}.`;
}

function track(node, view) {
  const end = Math.max(view.log.next, 1), stuck = node.tone === "bad";
  return h("div", { class: `track ${stuck ? "" : "fine"}`, role: "img", "aria-label": `${node.name} has ${count(node.watermark)} of ${count(view.log.next)} messages; the log begins with ${count(view.log.oldest)}`,
    "--done": `${((node.watermark / end) * 100).toFixed(2)}%`, "--gone": `${((view.log.oldest / end) * 100).toFixed(2)}%` },
  h("span", { class: "done" }), h("span", { class: "gone" }), h("span", { class: "pin" }),
  h("span", { class: "lab l0" }, view.log.oldest ? `log begins at ${count(view.log.oldest)}` : "0"), h("span", { class: "lab l1" }, `log ends before ${count(view.log.next)}`),
  h("span", { class: "lab l2" }, node.lag ? `next: ${count(node.watermark)}` : "has everything"));
}

function actions(view, node, again) {
  const name = view.name, sink = node.name, done = () => { held.forget(); again(); };
  const go = (wish) => () => actOn(name, { sink, ...wish }, done);
  const rewind = async () => {
    const text = await prompt(`Set the offset of ${sink}`, "Everything up to this offset counts as acknowledged; -1 means everything again", String(node.watermark - 1));
    if (text !== null && /^-?\d+$/.test(text)) go({ action: "mark", offset: Number(text) })();
  };
  const steps = async () => {
    const text = await prompt(`Deliver several messages to ${sink}`, "How many at most, one at a time (up to 1000)", String(Math.min(10, Math.max(node.lag, 1))));
    if (text !== null && /^\d+$/.test(text)) go({ action: "step", count: Number(text) })();
  };
  const act = (label, does, what, tone = "") => h("div", { class: "act" }, h("button", { class: tone, onclick: does }, label), h("span", {}, what));
  const behind = node.lag > 0, standing = node.state === "stopped" || node.state === "paused";
  return h("section", { class: "card", id: "acts" }, h("header", {}, h("h2", { tabindex: "-1" }, "What you can do")),
    view.running ? h("p", { class: "note" }, standing ? `The pipeline runs, and does not feed ${sink} now. Lead it past the message, then have it go on.` : `The pipeline runs (process ${view.run.pid}). Pause ${sink} to step or to pass over messages; offsets are set while nothing runs.`) : null,
    h("div", { class: "acts" },
      behind ? act("Step", go({ action: "step" }), "deliver just the next message, through its functions", view.running && !standing ? "" : "primary") : null,
      behind ? act("Step several…", steps, "deliver the next ones, one at a time") : null,
      behind ? act("Keep for later", go({ action: "dead-letter" }), "send the next message to the dead letters if it is refused again") : null,
      behind ? act("Pass over it", go({ action: "ack", offsets: [node.watermark] }), "acknowledge the next message without sending it") : null,
      act("Set offset…", rewind, "rewind to send messages again, or move forward"),
      node.paused || (view.running && standing) ? act("Resume", go({ action: "resume" }), "go on where the offset is") : act("Pause", go({ action: "pause" }), "take nothing more until resumed"),
      node.dead_letters ? act("Replay", go({ action: "replay" }), `send its ${counted(node.dead_letters, "dead letter")} again`) : null));
}

/** On a phone the message comes first, and it may be long. */
function toActs() {
  const acts = document.getElementById("acts");
  acts.scrollIntoView();
  acts.querySelector("h2").focus({ preventScroll: true });
}

function history(detail) {
  if (!detail.history.length) return null;
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, "Who did what")), h("ul", { class: "steps" }, detail.history.slice(0, 8).map((one) =>
    h("li", {}, h("b", {}, one.action), " ", Object.entries(one.detail ?? {}).filter(([, v]) => v !== null).map(([k, v]) => `${k} ${Array.isArray(v) ? v.join(", ") : v}`).join(", "),
      h("div", { class: "dim num" }, `${one.who}, ${time(one.time).slice(0, 19)}`)))));
}

export const sink = {
  title: ({ sink: name }) => name,
  render(again, { name, sink: sinkName }) {
    const view = store.pipelines.get(name);
    const node = view?.nodes?.find((one) => one.name === sinkName && one.kind === "sink");
    if (!node) return missing(name, sinkName);
    const stamp = `${node.watermark}/${node.generation}/${view.log.next > node.watermark}/${node.paused}/${node.dead_letters}`;
    if (held.want(`${name}/${sinkName}`, stamp, `${of(name)}/sinks/${encodeURIComponent(sinkName)}`, again)) { open.clear(); find = ""; }
    const detail = held.found;
    const next = detail?.around.find((one) => one.offset === detail.watermark);
    const stuck = node.tone === "bad" && node.lag > 0;
    const seen = store.histories[name] ?? {};
    const pairs = [["Offset", count(node.watermark - 1)], ["Behind", `${counted(node.lag, "message")}${node.lag ? `, ${bytes(node.lag_bytes)}` : ""}`], node.pending_ts ? ["Oldest it lacks", ago(node.pending_ts)] : null,
      ["Delivered", count(node.delivered)], ["Dropped", count(node.dropped)], ["Dead", count(node.dead)], ["Generation", count(node.generation)], ["Last move", ago(node.updated_ts)],
      node.acked.length ? ["Passed over ahead", node.acked.map(count).join(", ")] : null, ...node.quotas.map((q) => [q.what, `${Math.round((100 * q.used) / q.limit)} % used`])].filter(Boolean);
    return [
      h("div", { class: "crumbs" }, h("a", { href: link(view) }, name), " / sink"),
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, sinkName), h("span", { class: `chip ${node.tone}` }, h("span", { class: `dot ${node.tone}` }), node.state), node.what ? h("span", { class: "dim" }, node.what) : null, h("span", { class: "grow" }), h("button", { class: "narrow-only", onclick: toActs }, "What you can do ↓")),
      node.error ? h("div", { class: `note ${stuck ? "bad" : "warn"}` }, h("p", {}, h("b", {}, stuck ? `It stopped before message ${count(node.watermark)}. ` : "")), h("p", {}, node.error)) : null,
      held.error ? trouble(held.error) : null,
      h("div", { class: "two" },
        h("div", {},
          h("section", { class: "card" }, h("header", {}, h("h2", {}, "Where it stands")), track(node, view), h("p", {}, h("b", {}, "What happens next: "), onRestart(node, view))),
          node.lag && next ? h("section", { class: "card" }, h("header", {}, h("h2", {}, `The next message, ${count(next.offset)}`), h("span", { class: "grow" }),
            h("input", { type: "search", placeholder: "Find in it", "aria-label": "Find in the message", value: find, oninput: (event) => { find = event.target.value; again(); } })),
          message(next, find), h("p", {}), facts(next), h("p", {}), h("a", { class: "button", href: link(view, `trace/${next.offset}`) }, "Trace it through every node")) : null,
          node.lag && detail && !next ? h("section", { class: "card" }, h("p", {}, `Message ${count(detail.watermark)} is not in the log any more: compaction kept the newest of each namespace only.`)) : null,
          detail?.around.length ? h("section", { class: "card" }, h("header", {}, h("h2", {}, "Around it in the log"), h("span", { class: "grow" }), h("a", { href: link(view, `log?from=${Math.max(0, detail.watermark - 20)}`) }, "Browse the log")),
            table(detail.around, { open, again, here: detail.watermark, fine: !stuck, trace: (offset) => link(view, `trace/${offset}`) })) : null),
        h("div", {}, actions(view, node, again),
          h("section", { class: "card" }, h("header", {}, h("h2", {}, "In numbers")), h("dl", { class: "pairs" }, pairs.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])),
            h("div", { class: "charts" }, chart("delivered", seen[`rate ${sinkName}`] ?? []), chart("behind", seen[`lag ${sinkName}`] ?? [], "lag"))),
          detail ? history(detail) : null)),
    ];
  },
};
