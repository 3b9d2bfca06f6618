// How the page talks to the server: where it is, the caller's key, JSON, and server-sent events read by fetch.

/** Where the server is mounted, with a slash at the end: the page's own address, which a proxy may have prefixed. */
export const BASE = new URL(".", document.baseURI);

const KEY = "jaxgen.key";
let askForKey = async () => null;

/** The tab's API key, or "". It is kept for the tab alone. */
export const key = () => sessionStorage.getItem(KEY) ?? "";
export const setKey = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));

/** `ask(wrong)` shows a dialog and resolves to a key, or null; `wrong`: whether a key was refused. */
export const onKeyNeeded = (ask) => { askForKey = ask; };

/** What the server refused, with the words of its error. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.error = error ?? {};
  }
}

let asking = null;

/**
 * fetch of a path below BASE with the key. Asks for a key once where the server wants one, for all calls at a time.
 * Throws Refused for an error of the server, TypeError where it cannot be reached.
 */
export async function call(path, { body, signal, method } = {}) {
  for (;;) {
    const sent = key();
    const answer = await fetch(new URL(path, BASE), {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers: {
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(sent ? { Authorization: `Bearer ${sent}` } : {}),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal,
    });
    if (answer.ok) return answer;
    const refused = new Refused(answer.status, await answer.json().then((found) => found.error, () => null));
    if (answer.status !== 401) throw refused;
    if (key() === sent) {
      asking ??= askForKey(sent !== "").finally(() => { asking = null; });
      const given = await asking;
      if (given === null) throw refused;
      setKey(given);
    }
  }
}

export const json = async (path, options) => (await call(path, options)).json();

/** The events of a stream: `{name, data}` with the data as text, until the server ends it. Throws as `call` does. */
export async function* events(path, options = {}) {
  const answer = await call(path, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const event = { name: "message", data: "" };
        for (const line of part.split("\n")) {
          if (line.startsWith("data: ")) event.data += (event.data && "\n") + line.slice(6);
          else if (line.startsWith("event: ")) event.name = line.slice(7);
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
