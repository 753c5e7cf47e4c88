// What the page knows: the session, and the pipelines as the server tells them, live.

const listeners = new Set();

export const store = {
  session: null,
  pipelines: new Map(),
  histories: {},
  place: { place: "", problem: null, looking: null },
  ready: false,
  connected: false,
};

export const subscribe = (listener) => { listeners.add(listener); return () => listeners.delete(listener); };

let planned = false;
function changed() {
  if (planned) return;
  planned = true;
  setTimeout(() => { planned = false; for (const listener of listeners) listener(); }, 30);
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
  if (answer.status === 401) { location.href = "/login"; throw new Problem("Not logged in.", null, 401); }
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(value.error ?? `The console answered with ${answer.status}.`, value.hint, answer.status);
  return value;
}

export const of = (name) => `/api/pipelines/${encodeURIComponent(name)}`;
export const mayChange = () => store.session?.role === "operator";

let source;
export function listen() {
  source?.close();
  source = new EventSource("/api/events");
  const fresh = new Set();
  let told = false;
  // Those that the console does not tell of any more go, once it has looked at everything.
  const prune = () => {
    if (store.place.looking) return;
    for (const name of [...store.pipelines.keys()]) if (!fresh.has(name)) store.pipelines.delete(name);
  };
  source.onopen = () => { store.connected = true; told = false; fresh.clear(); changed(); };
  source.onerror = () => {
    store.connected = false;
    changed();
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  };
  source.addEventListener("place", (event) => { store.place = JSON.parse(event.data); if (told) prune(); changed(); });
  source.addEventListener("pipeline", (event) => {
    const view = JSON.parse(event.data);
    fresh.add(view.name);
    store.pipelines.set(view.name, view);
    changed();
  });
  source.addEventListener("gone", (event) => { store.pipelines.delete(JSON.parse(event.data)); changed(); });
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
