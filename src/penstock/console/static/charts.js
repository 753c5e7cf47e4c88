// Small charts of the last hour. Each says in words what it draws.

import { h } from "./dom.js";
import { count, rate } from "./words.js";

const STEP = 20, KEPT = 180;

function path(values, width, height, top) {
  const padded = [...Array(Math.max(0, KEPT - values.length)).fill(null), ...values].slice(-KEPT);
  if (padded.at(-2) === null) padded[KEPT - 2] = padded.at(-1); // what has just begun is seen as a short line
  let line = "", area = "", open = false, lastX = 0;
  padded.forEach((value, at) => {
    const x = (at / (KEPT - 1)) * width;
    if (value === null) { if (open) area += `L${lastX.toFixed(1)} ${height}Z`; open = false; return; }
    const y = height - 2 - (value / top) * (height - 6);
    line += `${open ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    area += open ? `L${x.toFixed(1)} ${y.toFixed(1)}` : `M${x.toFixed(1)} ${height}L${x.toFixed(1)} ${y.toFixed(1)}`;
    open = true;
    lastX = x;
  });
  if (open) area += `L${lastX.toFixed(1)} ${height}Z`;
  return { line, area };
}

/** A chart of one series; `kind` is rate or lag. */
export function chart(title, values = [], kind = "rate", plain = false) {
  const seen = values.filter((value) => value !== null);
  const top = Math.max(1, ...seen), last = seen.length ? seen[seen.length - 1] : 0;
  const tell = kind === "rate" ? rate : count;
  const { line, area } = path(values, 300, 46, top);
  const minutes = Math.max(1, Math.round((seen.length * STEP) / 60));
  const label = seen.length ? `${title}, the last ${minutes} min: now ${tell(last)}, at most ${tell(Math.max(...seen))}` : `${title}: nothing was seen yet`;
  return h("div", { class: `chart ${kind}` },
    plain ? null : h("div", { class: "title" }, h("span", {}, title), h("b", {}, tell(last))),
    h("svg", { viewBox: "0 0 300 46", preserveAspectRatio: "none", role: "img", "aria-label": label },
      h("line", { class: "base", x1: 0, x2: 300, y1: 45, y2: 45 }), h("path", { class: "area", d: area }), h("path", { class: "line", d: line })));
}
