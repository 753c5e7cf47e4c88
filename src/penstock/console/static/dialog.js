// Before anything changes: what exactly would change, the command that does the same, and a button that says so.

import { h, toast } from "./dom.js";
import { Problem, ask, mayChange, of, store } from "./store.js";

export function copyable(text) {
  const button = h("button", { class: "small", type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select it"; }
  } }, "Copy");
  return h("div", { class: "cmd" }, h("code", {}, text), button);
}

function open(content, label) {
  const box = h("dialog", { "aria-label": label }, content);
  document.body.append(box);
  box.addEventListener("close", () => box.remove());
  box.showModal();
  return box;
}

/** Plan it, ask, do it. `done` is called when it was done. */
export async function act(path, wish, done = () => {}) {
  let plan;
  try { plan = await ask(`${path}/plan`, wish); } catch (error) { return tell(error); }
  const refused = plan.reason || (mayChange() ? null : "You may look here, and change nothing.");
  const go = h("button", { class: plan.danger ? "danger" : "primary", type: "button", disabled: Boolean(refused) }, plan.verb);
  const out = h("div", { role: "status" });
  const box = open(h("div", { class: "in" }, h("h2", {}, plan.title),
    h("ul", {}, plan.changes.map((change) => h("li", {}, change))),
    refused ? h("div", { class: "note warn" }, h("p", {}, refused), plan.hint ? h("p", {}, plan.hint) : null) : null,
    h("p", { class: "dim" }, "The same on the command line:"), copyable(plan.command), out,
    h("div", { class: "foot" }, h("button", { type: "button", onclick: () => box.close() }, refused ? "Close" : "Cancel"), go)), plan.title);
  go.onclick = async () => {
    go.disabled = true;
    out.replaceChildren(h("p", { class: "dim" }, "Working…"));
    try {
      const outcome = await ask(`${path}/do`, wish);
      if (outcome.ok) { box.close(); toast(outcome.lines.slice(0, 6).join("\n")); }
      else { out.replaceChildren(h("div", { class: "note bad" }, outcome.lines.map((line) => h("p", {}, line)))); go.remove(); box.querySelector(".foot button").textContent = "Close"; }
      done(outcome);
    } catch (error) {
      go.disabled = false;
      out.replaceChildren(problem(error));
    }
  };
  return box;
}

export const actOn = (pipeline, wish, done) => act(of(pipeline), wish, done);

/** A question with one field; resolves to the text, or null. */
export function prompt(title, label, value, button = "Next") {
  return new Promise((resolve) => {
    const field = h("input", { id: "prompted", value, autocomplete: "off" });
    const form = h("form", { class: "in", method: "dialog" }, h("h2", {}, title), h("label", { for: "prompted" }, label), field,
      h("div", { class: "foot" }, h("button", { type: "button", onclick: () => box.close() }, "Cancel"), h("button", { class: "primary", value: "yes" }, button)));
    const box = open(form, title);
    field.select();
    box.addEventListener("close", () => resolve(box.returnValue === "yes" ? field.value.trim() : null));
  });
}

export function problem(error) {
  const hint = error instanceof Problem ? error.hint : null;
  return h("div", { class: "note bad", role: "alert" }, h("p", {}, error.message), hint ? h("p", {}, hint) : null);
}

/** The same on a page: what the banner tells of everything is not told again. */
export function trouble(error) {
  const away = error.status === 0 || error.status === 503;
  return away && (store.place.problem || !store.connected) ? null : problem(error);
}

export function tell(error) { toast(`${error.message}${error.hint ? `\n${error.hint}` : ""}`, "bad"); }
