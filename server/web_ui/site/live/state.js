// What the live view knows: pure functions from a state and an event of the step feed to the next state.

import { record } from "./requests.js";

export const MOST_STEPS = 3000;
export const MOST_REQUESTS = 500;

export const EMPTY = {
  hello: null, // the feed's first event
  steps: [], // objects by the names of step_fields, oldest first
  now: null,
  requests: new Map(), // number -> see requests.js, in the order of arrival
  ids: new Map(), // number -> id of the reader's own requests of which no event has come yet
  dropped: 0, // records that the server dropped for this reader
  joined: false, // whether a stream has just begun, whose first records may be known already
};

const named = (fields, values) => Object.fromEntries(fields.map((field, at) => [field, values[at]]));

/** Whether `steps`, the first of a stream, are of another run of the server than those of `state`. */
function restarted(state, steps) {
  const last = state.steps.at(-1);
  if (!last) return false;
  return !steps.some((step) => step.number === last.number && step.time === last.time);
}

const afresh = (state) => ({ ...state, steps: [], requests: new Map(), ids: new Map() });

function trimmed(requests) {
  for (const [number, request] of requests) {
    if (requests.size <= MOST_REQUESTS) return requests;
    if (request.ended) requests.delete(number);
  }
  for (const number of requests.keys()) {
    if (requests.size <= MOST_REQUESTS) break;
    requests.delete(number);
  }
  return requests;
}

function tookSteps(before, data) {
  const fields = before.hello.step_fields;
  let steps = data.steps.map((values) => named(fields, values));
  const state = before.joined && restarted(before, steps) ? afresh(before) : before;
  const last = state.steps.at(-1)?.number ?? -Infinity;
  steps = steps.filter((step) => step.number > last);
  const requests = new Map(state.requests);
  for (const event of data.events) {
    const [time, number] = event;
    // A stream begins with what the server still holds, of which an earlier one may have told.
    const known = state.joined && time <= (state.requests.get(number)?.latest ?? -Infinity);
    if (!known) requests.set(number, record(requests.get(number), event, state.ids.get(number)));
  }
  return {
    ...state,
    steps: [...state.steps, ...steps].slice(-MOST_STEPS),
    requests: trimmed(requests),
    dropped: state.dropped + (data.dropped ?? 0),
    joined: false,
  };
}

function tookMine(state, { requests: mine }) {
  const requests = new Map(state.requests);
  const newest = Math.max(-1, ...requests.keys());
  const ids = new Map([...state.ids].filter(([number]) => number > newest));
  for (const [text, id] of Object.entries(mine)) {
    const number = Number(text);
    if (requests.has(number)) requests.set(number, { ...requests.get(number), id });
    else if (number > newest) ids.set(number, id); // of an older one nothing will come: the server has forgotten it
  }
  return { ...state, requests, ids: new Map([...ids].slice(-MOST_REQUESTS)) };
}

/** The state after the event `name` of the feed with `data`. */
export function reduce(state, name, data) {
  if (name === "hello") return { ...state, hello: data, joined: true };
  if (!state.hello) return state;
  if (name === "steps") return tookSteps(state, data);
  if (name === "mine") return tookMine(state, data);
  // A stream whose ring was empty is of a server that has made no step yet.
  if (name === "now") return { ...(state.joined ? afresh(state) : state), now: data, joined: false };
  return state;
}
