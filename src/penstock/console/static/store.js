// What the page knows: the session, and the pipelines as the server tells them, live.

const listeners = new Set();

export const store = {
  session: null,
  pipelines: new Map(),
  histories: {},
  place: { place: "", problem: null, looking: null },
  ready: false,
  connected: false,
  /** Whether the console has said that it ends. */
  ended: false,
};

export const subscribe = (listener) => { listeners.add(listener); return () => listeners.delete(listener); };

const SOON = 30, LATE = 500, SHARE = 4;
let planned = false, pause = SOON;
/** Tell it soon, and the more seldom the longer the listeners take: a page with much on it must not keep a processor busy. */
function changed() {
  if (planned) return;
  planned = true;
  setTimeout(() => {
    planned = false;
    const began = performance.now();
    for (const listener of listeners) listener();
    pause = Math.min(LATE, Math.max(SOON, SHARE * (performance.now() - began)));
  }, pause);
}

/** Ask the server; errors are values of class Problem. */
export class Problem extends Error {
  constructor(message, hint, status) { super(message); this.hint = hint; this.status = status; }
}

export async function ask(path, body) {
  const options = { headers: { Accept: "application/json" } };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    options.headers["X-Penstock-Csrf"] = store.session?.csrf ?? "";
  }
  let answer;
  try { answer = await fetch(path, options); } catch { throw new Problem("The console does not answer.", "Is it still running? This page goes on by itself when it is back.", 0); }
  if (answer.status === 401) { location.href = `/login${location.hash}`; throw new Problem("Not logged in.", null, 401); }
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(value.error ?? `The console answered with ${answer.status}.`, value.hint, answer.status);
  return value;
}

export const of = (name) => `/api/pipelines/${encodeURIComponent(name)}`;
export const mayChange = () => store.session?.role === "operator";

/** The console was away, or does not know us any more: who are we to it now? */
async function renew() {
  store.session = await ask("/api/session");
  changed();
}

async function again() {
  try { await renew(); listen(); } catch (error) { if (error.status !== 401) setTimeout(again, 2000); }
}

let source;
function listen() {
  source?.close();
  source = new EventSource("/api/events");
  const fresh = new Set();
  let told = false, lost = false;
  // Those that the console does not tell of any more go, once it has looked at everything.
  const prune = () => {
    if (store.place.looking) return;
    for (const name of [...store.pipelines.keys()]) if (!fresh.has(name)) store.pipelines.delete(name);
  };
  source.onopen = () => {
    if (lost) renew().catch(() => { /* it is lost again */ });
    store.connected = true;
    store.ended = told = lost = false;
    fresh.clear();
    changed();
  };
  source.onerror = () => {
    lost = true;
    store.connected = false;
    changed();
    if (source.readyState === EventSource.CLOSED) setTimeout(again, 2000);
  };
  source.addEventListener("place", (event) => { store.place = JSON.parse(event.data); if (told) prune(); changed(); });
  source.addEventListener("pipeline", (event) => {
    const view = JSON.parse(event.data);
    fresh.add(view.name);
    store.pipelines.set(view.name, view);
    changed();
  });
  source.addEventListener("gone", (event) => { store.pipelines.delete(JSON.parse(event.data)); changed(); });
  source.addEventListener("end", () => { store.ended = true; changed(); });
  source.addEventListener("ready", () => { store.ready = told = true; prune(); changed(); });
}

export async function begin() {
  store.session = await ask("/api/session");
  listen();
  const charts = async () => {
    if (document.visibilityState === "visible") {
      try { store.histories = await ask("/api/history"); changed(); } catch { /* the banner tells it */ }
    }
  };
  charts();
  setInterval(charts, 10000);
}
