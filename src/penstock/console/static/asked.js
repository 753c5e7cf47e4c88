// What a page asks for beside the live picture: again when its stamp is another one, and a while after it failed.

import { ask } from "./store.js";

const AFTER_FAILURE = 3000;

export class Asked {
  found = null;
  error = null;
  #subject = null;
  #stamp = null;
  #number = 0;
  #ready = 0;

  /** `pause` is the least time between two questions. What was found of the same subject stays until there is more. Tells whether the subject is new. */
  want(subject, stamp, path, again, pause = 0) {
    const fresh = subject !== this.#subject;
    if (fresh) Object.assign(this, { found: null, error: null });
    if (!fresh && (stamp === this.#stamp || Date.now() < this.#ready)) return false;
    this.#subject = subject;
    this.#stamp = stamp;
    this.#ready = Date.now() + pause;
    const mine = ++this.#number;
    const settle = (answer) => { if (mine === this.#number) { Object.assign(this, answer); again(); } };
    ask(path).then((found) => settle({ found, error: null }), (error) => {
      settle({ error });
      setTimeout(() => { if (mine === this.#number) { this.forget(); again(); } }, AFTER_FAILURE);
    });
    return fresh;
  }

  /** Ask again the next time. */
  forget() { this.#stamp = null; this.#ready = 0; }
}
