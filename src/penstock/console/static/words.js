// Numbers, times and sizes as people read them.

const plain = new Intl.NumberFormat("en-US");

export const count = (n) => (n === null || n === undefined ? "–" : plain.format(n));
export const counted = (n, thing) => `${count(n)} ${thing}${n === 1 ? "" : "s"}`;

export function short(n) {
  if (n < 1000) return n < 10 && n % 1 ? n.toFixed(1) : String(Math.round(n));
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)}k`;
  return n < 1e9 ? `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)}M` : `${(n / 1e9).toFixed(1)}G`;
}

export const rate = (n) => `${short(n ?? 0)}/s`;

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export const took = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds));
export const ago = (us) => (us ? `${duration(Math.max(0, Date.now() / 1000 - us / 1e6))} ago` : "–");
export const time = (us) => (us ? new Date(us / 1000).toISOString().replace("T", " ").slice(0, 23) : "–");
export const clock = (us) => (us ? new Date(us / 1000).toISOString().slice(11, 19) : "–");
