// Runs a person's function over the messages of a batch, inside V8. Evaluated before the person's own script.
//
// In:  a header, then the text of each message's data; \x1e ends each of them.
// Out: parts joined by \x1e: a header, then the new text of each message whose text changed.
//
// A value that is in the end what it was keeps its very text, at any depth: the text is scanned for the places of
// the values, and only what the function touched is written anew. So no number loses digits by passing through.
(function () {
  "use strict";
  const parse = JSON.parse, stringify = JSON.stringify, rawJSON = JSON.rawJSON;
  const keysOf = Object.keys, isArray = Array.isArray, is = Object.is, protoOf = Object.getPrototypeOf;
  const bare = Object.create, define = Object.defineProperty, now = Date.now, text = String;
  const call = Function.prototype.call, isUnicode = call.bind(String.prototype.isWellFormed);
  const asUnicode = call.bind(String.prototype.toWellFormed);
  const timeOf = call.bind(Date.prototype.getTime), matches = call.bind(RegExp.prototype.test);
  const plain = Object.prototype, isFinite = Number.isFinite, isInteger = Number.isSafeInteger;
  const QUOTE = 34, COMMA = 44, OPEN = 123, CLOSE = 125, LIST = 91, END = 93;

  // How JSON.stringify writes half a surrogate pair: an escape behind an even number of backslashes.
  const HALF = /(?<!\\)(?:\\\\)*\\ud[89a-f]/;
  const YEAR_1 = -62135596800000, YEAR_10000 = 253402300800000;

  class Refusal { constructor(message) { this.message = message; } }

  // What an object or array was before the function saw it, and which one. `keys` is null for an array.
  class Snap {
    constructor(self, keys, values) { this.self = self; this.keys = keys; this.values = values; this.known = null; }
  }

  function snap(value) {
    if (typeof value !== "object" || value === null) return value;
    const keys = isArray(value) ? null : keysOf(value);
    const size = keys === null ? value.length : keys.length;
    const values = new Array(size);
    for (let i = 0; i < size; i++) values[i] = snap(value[keys === null ? i : keys[i]]);
    return new Snap(value, keys, values);
  }

  function isPlain(value) {
    if (typeof value !== "object" || value === null || isArray(value)) return false;
    const proto = protoOf(value);
    return (proto === plain || proto === null) && typeof value.toJSON !== "function";
  }

  // Where the object stood that is now at the place `at`: there, unless it is one of the others.
  function stood(was, at, value) {
    if (typeof value !== "object" || value === null) return at;
    const values = was.values, here = values[at];
    if (here instanceof Snap && here.self === value) return at;
    if (was.known === null) {
      was.known = new Map();
      for (let i = 0; i < values.length; i++) if (values[i] instanceof Snap) was.known.set(values[i].self, i);
    }
    return was.known.get(value) ?? at;
  }

  function kept(was, at, value) {
    return stood(was, at, value) === at && untouched(was.values[at], value);
  }

  function untouched(was, value) {
    if (!(was instanceof Snap)) return is(was, value);
    const keys = was.keys, values = was.values, size = values.length;
    if (keys === null) {
      if (!isArray(value) || value.length !== size) return false;
      for (let i = 0; i < size; i++) if (!kept(was, i, value[i])) return false;
      return true;
    }
    if (!isPlain(value)) return false;
    const found = keysOf(value);
    if (found.length !== size) return false;
    for (let i = 0; i < size; i++)
      if (found[i] !== keys[i] || !kept(was, i, value[keys[i]])) return false;
    return true;
  }

  function blank(t, i) {
    let c = t.charCodeAt(i);
    while (c === 32 || c === 10 || c === 13 || c === 9) c = t.charCodeAt(++i);
    return i;
  }

  function stringEnd(t, i) {
    let c = t.charCodeAt(++i);
    while (c !== QUOTE) {
      if (c === 92) i++;
      c = t.charCodeAt(++i);
    }
    return i + 1;
  }

  function valueEnd(t, i) {
    let c = t.charCodeAt(i);
    if (c === QUOTE) return stringEnd(t, i);
    if (c !== OPEN && c !== LIST) {
      while (c !== COMMA && c !== CLOSE && c !== END && c > 32) c = t.charCodeAt(++i);
      return i;
    }
    let depth = 0;
    for (;;) {
      c = t.charCodeAt(i);
      if (c === QUOTE) { i = stringEnd(t, i); continue; }
      if (c === OPEN || c === LIST) depth++;
      else if ((c === CLOSE || c === END) && --depth === 0) return i + 1;
      i++;
    }
  }

  // Where the entries of an object or array stand: each from its name on, its value, its end.
  class Places {
    constructor(size) {
      this.size = this.close = 0;
      this.entries = new Array(size);
      this.begins = new Array(size);
      this.ends = new Array(size);
    }
  }

  function placesOf(t, i, expected) {
    const places = new Places(expected), { entries, begins, ends } = places, named = t.charCodeAt(i) === OPEN;
    let size = 0;
    i = blank(t, i + 1);
    let c = t.charCodeAt(i);
    while (c !== CLOSE && c !== END) {
      entries[size] = i;
      if (named) i = blank(t, blank(t, stringEnd(t, i)) + 1);
      begins[size] = i;
      i = ends[size++] = valueEnd(t, i);
      i = blank(t, i);
      c = t.charCodeAt(i);
      if (c === COMMA) i = blank(t, i + 1);
    }
    places.size = size;
    places.close = i + 1;
    return places;
  }

  // The place of each of the names, in their order. JSON.parse has another order than the text if a name is there
  // twice (the last one counts) or is a whole number.
  function inOrderOf(names, places, t) {
    if (places.size === names.length && !(names.length > 0 && isDigit(names[0]))) return places;
    const last = new Map(), sorted = new Places(names.length);
    for (let i = 0; i < places.size; i++) last.set(parse(t.slice(places.entries[i], stringEnd(t, places.entries[i]))), i);
    for (let i = 0; i < names.length; i++) {
      const at = last.get(names[i]);
      sorted.entries[i] = places.entries[at];
      sorted.begins[i] = places.begins[at];
      sorted.ends[i] = places.ends[at];
    }
    sorted.size = -1;
    return sorted;
  }

  // The text of `value`, which was `was` and stood in `t` from `begin` to `end`. Undefined: it has none.
  function written(was, value, t, begin, end, path) {
    if (was instanceof Snap) {
      if (was.keys !== null && isPlain(value)) return writtenObject(was, value, t, begin, end, path) ?? t.slice(begin, end);
      if (was.keys === null && isArray(value)) return writtenArray(was, value, t, begin, path);
    }
    return fresh(value, path);
  }

  // The quick way for most edits: the old fields are all there, in their order, one of them has another value, or new
  // ones follow. Only what stands before that one is scanned. Undefined if it is not so simple: the name might be
  // there twice, and the last one is the one that counts.
  function patched(was, value, keys, same, t, begin, end, path) {
    const old = was.keys, size = old.length;
    if (size === 0 || keys.length < size || isDigit(old[0])) return undefined;
    for (let i = same + 1; i < size; i++)
      if (keys[i] !== old[i] || !kept(was, i, value[old[i]])) return undefined;
    let out = "", cursor = begin;
    if (same < size) {
      if (keys[same] !== old[same] || stood(was, same, value[old[same]]) !== same) return undefined;
      let i = blank(t, begin + 1);
      for (let n = 0; n < same; n++) {
        i = valueEnd(t, blank(t, blank(t, stringEnd(t, i)) + 1));
        i = blank(t, blank(t, i) + 1);
      }
      const name = t.slice(i, stringEnd(t, i)), from = blank(t, blank(t, i + name.length) + 1), to = valueEnd(t, from);
      const after = t.slice(to, end);
      if (name !== '"' + old[same] + '"' || after.includes("\\") || after.includes(name)) return undefined;
      const one = written(was.values[same], value[old[same]], t, from, to, path === "" ? old[same] : path + "." + old[same]);
      if (one === undefined) return undefined;
      out = t.slice(begin, from) + one;
      cursor = to;
    }
    if (keys.length === size) return out + t.slice(cursor, end);
    let close = end - 2;
    while (t.charCodeAt(close) <= 32) close--;
    out += t.slice(cursor, close + 1);
    for (let i = size; i < keys.length; i++) {
      const key = keys[i], one = fresh(value[key], path === "" ? key : path + "." + key);
      if (one !== undefined) out += "," + named(key) + ":" + one;
    }
    return out + "}";
  }

  function isDigit(name) {
    const c = name.charCodeAt(0);
    return c >= 48 && c <= 57;
  }

  // The text of an object that was there before; undefined if nothing in it changed. What stands between two values
  // that nobody touched is copied with them, in one piece.
  function writtenObject(was, value, t, begin, end, path) {
    const keys = keysOf(value), old = was.keys, values = was.values, size = keys.length;
    let same = 0;
    while (same < size && same < old.length && keys[same] === old[same] && kept(was, same, value[keys[same]])) same++;
    if (same === size && same === old.length) return undefined;
    const quick = patched(was, value, keys, same, t, begin, end, path);
    if (quick !== undefined) return quick;
    const places = inOrderOf(old, placesOf(t, begin, old.length), t), ordered = places.size >= 0;
    const { entries, begins, ends } = places;
    // What has been copied ends at `cursor`; the entry before is the one at `last`, or none of the old ones.
    let out = "", cursor = begin, last = -1, next = 0;
    for (let i = 0; i < size; i++) {
      const key = keys[i], at = old[next] === key ? next : old.indexOf(key);
      let one;
      if (at < 0 || !(i < same || kept(was, at, value[key]))) {
        const inside = path === "" ? key : path + "." + key;
        const moved = at < 0 || stood(was, at, value[key]) !== at;
        one = moved ? fresh(value[key], inside) : written(values[at], value[key], t, begins[at], ends[at], inside);
        if (one === undefined) continue;
      }
      if (at < 0 || at !== last + 1 || !ordered) {
        if (last >= 0) out += t.slice(cursor, ends[last]);
        out += out === "" ? "{" : ",";
        cursor = at < 0 ? 0 : entries[at];
      }
      if (at < 0) out += named(key) + ":" + one;
      else if (one !== undefined) { out += t.slice(cursor, begins[at]) + one; cursor = ends[at]; }
      last = at < 0 ? -2 : at;
      if (at >= 0) next = at + 1;
    }
    if (ordered && last >= 0 && last === old.length - 1) return out + t.slice(cursor, places.close);
    if (last >= 0) out += t.slice(cursor, ends[last]);
    return (out === "" ? "{" : out) + "}";
  }

  // An object keeps its text wherever it goes in its array.
  function writtenArray(was, value, t, begin, path) {
    const { values } = was, size = values.length, places = placesOf(t, begin, size), { begins, ends, close } = places;
    const shared = Math.min(size, value.length);
    const element = (from, i) => (from < 0 || from >= size ? fresh(value[i], path + "[" + i + "]")
      : written(values[from], value[i], t, begins[from], ends[from], path + "[" + i + "]")) ?? "null";
    let out = "", cursor = begin;
    for (let i = 0; i < shared; i++) {
      const from = cameFrom(was, i, value, t, places);
      if (from === i && untouched(values[i], value[i])) continue;
      out += t.slice(cursor, begins[i]) + element(from, i);
      cursor = ends[i];
    }
    if (size === value.length) return out + t.slice(cursor, close);
    out += shared === 0 ? "[" : t.slice(cursor, ends[shared - 1]);
    for (let i = shared; i < value.length; i++) out += (i === 0 ? "" : ",") + element(stood(was, i, value[i]), i);
    return out + "]";
  }

  // The old place of what is now at the place `i`; -1 if nobody can tell: where an array has lost elements, that is so of
  // copies, and of numbers that JavaScript takes for one another.
  function cameFrom(was, i, value, t, { begins, ends }) {
    const one = value[i], values = was.values, from = stood(was, i, one);
    if (from !== i || value.length >= values.length) return from;
    if (typeof one === "object" && one !== null) return values[i] instanceof Snap && values[i].self === one ? i : -1;
    const exact = typeof one !== "number" || isInteger(one) || t.slice(begins[i], ends[i]) === "" + one;
    return exact || values.indexOf(one, i + 1) < 0 ? i : -1;
  }

  function fresh(value, path) {
    if (typeof value === "number" && isFinite(value)) return "" + value;
    let out;
    try {
      out = stringify(value);
    } catch (error) {
      throw new Refusal(`field '${path}': ${error.message}`);
    }
    if (out === undefined) return out;
    // JSON.stringify writes null for numbers that JSON has no form for.
    if (out.includes("null")) {
      finite(value, path);
      stringify(value, (_, one) => {  // sees what toJSON gives, and numbers that are objects
        if ((typeof one === "number" || one instanceof Number) && !isFinite(+one))
          throw new Refusal(`field '${path}' is ${+one}, for which JSON has no form`);
        return one;
      });
    }
    whole(out, path);
    return out;
  }

  function named(key) {
    const out = stringify(key);
    whole(out, key);
    return out;
  }

  function whole(out, path) {
    if (out.includes("\\ud") && matches(HALF, out))
      throw new Refusal(`field '${path}' has half a surrogate pair in it`);
  }

  function finite(value, path) {
    if (typeof value === "number" && !isFinite(value))
      throw new Refusal(`field '${path}' is ${value}, for which JSON has no form`);
    if (typeof value !== "object" || value === null) return;
    for (const key of keysOf(value))
      finite(value[key], isArray(value) ? `${path}[${key}]` : `${path}.${key}`);
  }

  function kind(value) {
    if (value === null) return "null";
    if (value === undefined) return "nothing";
    if (isArray(value)) return "an array";
    if (typeof value !== "object") return `a ${typeof value}`;
    if (value instanceof Promise) return "a promise, which would be kept too late";
    const name = protoOf(value) === null ? "" : value.constructor?.name;
    return name && name !== "Object" ? `a ${name}` : "an object";
  }

  // Values with a form of their own in extended JSON, and such that would leave as {} without a word.
  define(Date.prototype, "toJSON", { writable: true, configurable: true, value() {
    const time = timeOf(this), far = time < YEAR_1 || time >= YEAR_10000;
    return { $date: far ? { $numberLong: "" + time } : this.toISOString() };
  } });
  define(RegExp.prototype, "toJSON", { writable: true, configurable: true, value() { return { $regex: this.source, $options: this.flags }; } });
  define(BigInt.prototype, "toJSON", { writable: true, configurable: true, value() { return rawJSON(this.toString()); } });
  for (const type of [Map, Set, WeakMap, WeakSet, Promise, ArrayBuffer, DataView, protoOf(Uint8Array)])
    define(type.prototype, "toJSON", { writable: true, configurable: true,
      value() { throw new TypeError(`JSON has no form for a ${this.constructor.name}; make a plain object or array of it`); } });
  globalThis.setTimeout = undefined;
  globalThis.clearTimeout = undefined;
  define(globalThis, "_", {
    configurable: true,
    get() { throw new ReferenceError("underscore (_) is not part of Penstock; use JavaScript's own methods, or put a copy of it into the file"); },
    set(value) { define(globalThis, "_", { configurable: true, writable: true, value }); },
  });
  globalThis.module = { exports: {} };
  globalThis.exports = globalThis.module.exports;

  // The function itself is known only after the person's script has run.
  return function prepare(transform, url, shown, otto) {
    const expected = "return msg, or false to drop the message";

    function told(error) {
      if (error instanceof Refusal) return error.message;
      try {
        if (!(error instanceof Error)) return `the function threw ${typeof error === "string" ? error : stringify(error)} (${shown})`;
        const stack = text(error.stack), at = stack.indexOf(url + ":");
        const line = at < 0 ? "" : ` (${shown}:${parseInt(stack.slice(at + url.length + 1), 10)})`;
        return `${error.name}: ${error.message}${line}`;
      } catch {
        return `the function threw something that cannot be shown (${shown})`;
      }
    }

    function verdict(answer, message) {
      if (answer === false) return null;
      if (answer === true) return message;
      if (answer === null && !otto) return null;
      if (typeof answer !== "object" || answer === null || isArray(answer) || answer instanceof Promise)
        throw new Refusal(`the function returned ${kind(answer)}; ${expected}`);
      return answer;
    }

    function checked(answer, given) {
      const { ts, op, ns, data } = answer;
      if (ts === undefined || op === undefined || ns === undefined || data === undefined) {
        const missing = ["ts", "op", "ns", "data"].find((name) => answer[name] === undefined);
        throw new Refusal(`the function returned an object without '${missing}'`);
      }
      if (typeof op !== "string" || op === "")
        throw new Refusal(`the function set op to ${op === "" ? "''" : kind(op)}, a word is wanted`);
      if (typeof ns !== "string" || ns === "")
        throw new Refusal(`the function set ns to ${ns === "" ? "''" : kind(ns)}, a name is wanted`);
      if (!isUnicode(op) || !isUnicode(ns))
        throw new Refusal(`the function set ${isUnicode(op) ? "ns" : "op"} to a text with half a surrogate pair in it`);
      if (ts !== given.ts && !isInteger(ts))
        throw new Refusal(`the function set ts to ${typeof ts === "number" ? ts : kind(ts)}, whole microseconds since 1970 are wanted`);
      const skipped = op[0] === "s" || op[0] === "S";
      if (!skipped && !isPlain(data))
        throw new Refusal(`the function set data to ${kind(data)}, an object is wanted`);
      return !skipped;
    }

    // As JSON, whatever toJSON the script has given to all arrays.
    function list(values) {
      let out = "";
      for (let i = 0; i < values.length; i++)
        out += (i === 0 ? "" : ",") + (isArray(values[i]) ? list(values[i]) : stringify(values[i]));
      return "[" + out + "]";
    }

    function document(t) {
      let data;
      try {
        data = parse(t);
      } catch (error) {
        throw new Refusal(`data is not a JSON object: ${error.message}`);
      }
      if (typeof data !== "object" || data === null || isArray(data))
        throw new Refusal(`data is not a JSON object: it is ${kind(data)}`);
      return data;
    }

    return function run(batch, budget) {
      const begun = now();
      let end = batch.indexOf("\x1e");
      const { ts, op, ops, ns, names } = parse(batch.slice(0, end)), size = ts.length;
      const dropped = [], refused = [], moved = [], changed = [];
      let out = "", done = 0;
      while (done < size) {
        const i = done++, begin = end + 1;
        end = batch.indexOf("\x1e", begin);
        try {
          const data = document(batch.slice(begin, end)), was = snap(data);
          const given = { ts: ts[i], op: ops[op.length === 0 ? 0 : op[i]], ns: names[ns.length === 0 ? 0 : ns[i]] };
          const message = { ts: given.ts, op: given.op, ns: given.ns, data };
          const answer = verdict(transform(message), message);
          if (answer === null || !checked(answer, given)) {
            dropped.push(i);
          } else {
            let close = end;
            while (batch.charCodeAt(close - 1) !== CLOSE) close--;
            const text = writtenObject(was, answer.data, batch, blank(batch, begin), close, "");
            if (text !== undefined) { out += "\x1e" + text; changed.push(i); }
            if (answer.ts !== given.ts || answer.op !== given.op || answer.ns !== given.ns)
              moved.push([i, answer.ns, answer.op, answer.ts === given.ts ? null : answer.ts]);
          }
        } catch (error) {
          refused.push([i, asUnicode(told(error))]);
        }
        if (now() - begun > budget) break;
      }
      return `{"done":${done},"dropped":${list(dropped)},"refused":${list(refused)},"moved":${list(moved)},"changed":${list(changed)}}${out}`;
    };
  };
})()
