// One request as the step feed tells of it: pure functions from its events to its record.

/** Pieces of a prompt that a record holds for each visit; more are joined two by two. */
export const MOST_CHUNKS = 128;

const unknown = (number, id) => ({
  number,
  id, // of the answer, for the reader's own requests: the choices of an answer share it
  className: null,
  promptTokens: null,
  queued: null, // seconds of the clock
  visits: [], // stays on the device: {begun, cached, host, restored, chunks: [{from, to, start, length, count}], preempted}
  first: null,
  ended: null,
  reason: null,
  generated: null,
  latest: null,
});

const visit = (begun, cached, host) => ({ begun, cached, host, restored: null, restoredAt: null, chunks: [], preempted: null });

function withChunk(chunks, time, start, length) {
  const added = [...chunks, { from: time, to: time, start, length, count: 1 }];
  if (added.length <= MOST_CHUNKS) return added;
  const joined = [];
  for (let at = 0; at < added.length; at += 2) {
    const [one, next] = [added[at], added[at + 1]];
    joined.push(next ? { ...one, to: next.to, length: one.length + next.length, count: one.count + next.count } : one);
  }
  return joined;
}

function changed(request, change) {
  // The feed may begin in the middle of a request's life.
  const visits = request.visits.length ? request.visits : [visit(null, null, null)];
  return { ...request, visits: [...visits.slice(0, -1), { ...visits.at(-1), ...change(visits.at(-1)) }] };
}

const KINDS = {
  queued: (request, time, className, promptTokens) => ({ ...request, queued: time, className, promptTokens }),
  begun: (request, time, cached, host) => ({ ...request, visits: [...request.visits, visit(time, cached, host)] }),
  restored: (request, time, tokens) => changed(request, () => ({ restored: tokens, restoredAt: time })),
  chunk: (request, time, start, length) => changed(request, ({ chunks }) => ({ chunks: withChunk(chunks, time, start, length) })),
  preempted: (request, time) => changed(request, () => ({ preempted: time })),
  first: (request, time) => ({ ...request, first: time }),
  ended: (request, time, reason, generated) => ({ ...request, ended: time, reason, generated }),
};

/** The record after an event `[time, request, kind, ...values]`; `id`: of a request without a record. */
export function record(request, [time, number, kind, ...values], id = null) {
  const before = request ?? unknown(number, id);
  return { ...(KINDS[kind]?.(before, time, ...values) ?? before), latest: time };
}

/** What a request does: "waiting", "restoring", "prompt", "decoding" or "ended". */
export function doing(request) {
  if (request.ended !== null) return "ended";
  const last = request.visits.at(-1);
  if (!last || last.preempted !== null) return "waiting";
  if (last.host && last.restoredAt === null && !last.chunks.length) return "restoring";
  return request.first === null ? "prompt" : "decoding";
}

/** The request that `#live/NAME` means: a number, or the id of an answer, whose first choice it is then. */
export function called(requests, name) {
  if (/^\d+$/.test(name)) return requests.get(Number(name)) ?? null;
  return [...requests.values()].find(({ id }) => id === name) ?? null;
}
