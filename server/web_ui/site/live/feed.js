// Reads the step feed while it is looked at, and begins again after a dropped connection or a restart.

import { useEffect, useRef, useState } from "../vendor/preact.js";
import { events, Refused } from "../api.js";
import { EMPTY, reduce } from "./state.js";

const DRAW_MS = 100;
const FIRST_WAIT_MS = 500;
const MOST_WAIT_MS = 8000;
/** The feed tells the time each second: a longer silence is a dead connection. */
const SILENT_MS = 15000;

const later = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

/** Reads one stream to its end; `take(name, data)` for each event. */
async function readOnce(signal, take) {
  const stream = new AbortController();
  const stop = () => stream.abort();
  let watch = setTimeout(stop, SILENT_MS);
  signal.addEventListener("abort", stop);
  try {
    for await (const { name, data } of events("steps", { signal: stream.signal })) {
      if (signal.aborted) return;
      clearTimeout(watch);
      watch = setTimeout(stop, SILENT_MS);
      take(name, JSON.parse(data));
    }
  } finally {
    clearTimeout(watch);
    signal.removeEventListener("abort", stop);
    stop();
  }
}

/** What an error means: null where a further attempt may succeed, else what to say. */
function lasting(error) {
  if (!(error instanceof Refused)) return null;
  if (error.status === 404) return { status: "none" };
  return error.status >= 500 || error.status === 429 ? null : { status: "refused", message: error.message };
}

/** Reads the feed until `signal`, over and over. `say`: where it stands, `{status, message}`. */
export async function follow(signal, take, say) {
  let wait = FIRST_WAIT_MS;
  say({ status: "connecting" });
  while (!signal.aborted) {
    let message = "The connection ended.";
    try {
      await readOnce(signal, (name, data) => {
        if (name === "hello") {
          wait = FIRST_WAIT_MS;
          say({ status: "reading" });
        }
        take(name, data);
      });
    } catch (error) {
      if (signal.aborted) return;
      const end = lasting(error);
      if (end) return say(end);
      if (error instanceof Refused) message = error.message;
    }
    if (signal.aborted) return;
    say({ status: "reconnecting", message });
    await later(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(2 * wait, MOST_WAIT_MS);
  }
}

/** Whether the tab is in front. */
export function useTabShown() {
  const [shown, setShown] = useState(document.visibilityState === "visible");
  useEffect(() => {
    const changed = () => setShown(document.visibilityState === "visible");
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  return shown;
}

/** `[state, link, again]`: what the feed told, where it stands, and a function that tries again; read while `active`. */
export function useFeed(active) {
  const latest = useRef(EMPTY);
  const [state, setState] = useState(EMPTY);
  const [link, setLink] = useState({ status: "connecting" });
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    if (!active) return undefined;
    const stop = new AbortController();
    let timer = null;
    const draw = () => { timer = null; setState(latest.current); };
    follow(stop.signal, (name, data) => {
      latest.current = reduce(latest.current, name, data);
      timer ??= setTimeout(draw, DRAW_MS);
    }, (where) => stop.signal.aborted || setLink(where));
    return () => { stop.abort(); clearTimeout(timer); setState(latest.current); };
  }, [active, attempt]);
  return [state, link, () => setAttempt((before) => before + 1)];
}
