// The timeline of a request: its phases, and a sentence that says where its time went. Pure functions.

import { plural, seconds } from "./format.js";

export const PHASES = {
  queue: "Queue",
  restore: "Restore",
  prompt: "Prompt",
  decode: "Decodes",
  preempted: "Preempted",
  again: "Computed again",
};

/** The phases of one stay on the device, which ends at `end`. `first`: when the request's first token came, or null. */
function phasesOf(visit, first, end, again) {
  const { begun, host, restoredAt, chunks } = visit;
  const found = [];
  let at = begun ?? chunks[0]?.from ?? first ?? restoredAt;
  const add = (kind, to, more = {}) => {
    if (at !== null && to > at) found.push({ kind, from: at, to, ...more });
    at = Math.max(at, to);
  };
  if (host) add("restore", restoredAt ?? chunks[0]?.from ?? end, { tokens: visit.restored ?? host });
  const pieces = {
    chunks: chunks.reduce((sum, one) => sum + one.count, 0),
    tokens: chunks.reduce((sum, one) => sum + one.length, 0),
    ends: chunks.map((one) => one.to),
  };
  if (again) {
    if (chunks.length) add("again", Math.min(chunks.at(-1).to, end), pieces);
  } else if (first === null || first > at) {
    add("prompt", Math.min(first ?? end, end), pieces);
  }
  if (first !== null && end > first) add("decode", end);
  return found;
}

/** The phases of `request` in the order of time: `{kind, from, to, ...}`; one that lasts ends at `now`. */
export function phases(request, now) {
  const { visits, queued, first, ended } = request;
  const end = ended ?? Math.max(now, request.latest ?? 0);
  const found = [];
  let left = queued;
  visits.forEach((visit, at) => {
    const { begun, preempted } = visit;
    if (left !== null && begun !== null) found.push({ kind: at ? "preempted" : "queue", from: left, to: begun });
    const before = at > 0 && first !== null && begun !== null && first <= begun;
    found.push(...phasesOf(visit, first, preempted ?? end, before));
    left = preempted;
  });
  if (left !== null && (!visits.length || visits.at(-1).preempted !== null)) {
    found.push({ kind: visits.length ? "preempted" : "queue", from: left, to: end });
  }
  return found;
}

const WORDS = {
  queue: (time) => `${time} in the queue`,
  restore: (time, { tokens }) => `${time} for ${plural(tokens, "token")} from host memory`,
  prompt: (time, { tokens, chunks }) => `${time} of prompt` + (chunks ? ` (${plural(tokens, "token")} in ${plural(chunks, "chunk")})` : ""),
  decode: (time, { generated }) => `${time} of decodes` + (generated > 1 ? ` (${plural(generated, "token")})` : ""),
  preempted: (time, { times }) => `${time} preempted` + (times > 1 ? ` (${times} times)` : ""),
  again: (time, { tokens }) => `${time} to compute ${plural(tokens, "token")} again`,
};

/** The seconds of each kind of phase, in the order of their first: `[{kind, seconds, ...}]`. */
export function sums(request, now) {
  const found = new Map();
  for (const { kind, from, to, tokens = 0, chunks = 0 } of phases(request, now)) {
    const sum = found.get(kind) ?? { kind, seconds: 0, tokens: 0, chunks: 0, times: 0, generated: request.generated };
    found.set(kind, {
      ...sum, seconds: sum.seconds + to - from, tokens: sum.tokens + tokens, chunks: sum.chunks + chunks, times: sum.times + 1,
    });
  }
  return [...found.values()];
}

const TITLES = {
  queue: "waiting for its turn",
  restore: "waiting for host memory",
  prompt: "computing its prompt",
  decode: "generating tokens",
  preempted: "waiting after a preemption",
  again: "computing again what a preemption had lost",
};

/** A sentence on where a request's time went: the whole, the longest part, then all of them. */
export function why(request, now) {
  const parts = sums(request, now);
  if (!parts.length) return "Nothing is known of this request yet.";
  const whole = (request.ended ?? Math.max(now, request.latest)) - phases(request, now)[0].from;
  const longest = parts.reduce((one, next) => (next.seconds > one.seconds ? next : one));
  const words = parts.map((part) => WORDS[part.kind](seconds(part.seconds), part)).join(", ");
  const share = whole > 0 ? Math.round((100 * longest.seconds) / whole) : 100;
  const so = request.ended === null ? "so far" : "in all";
  return `${seconds(whole)} ${so}, most of it (${share} %) ${TITLES[longest.kind]}: ${words}.`;
}
