// Libraries that only some answers need: each is read when the first of those shows.

const found = new Map();
const listeners = new Set();

/** What `read` resolves to, or null until it has come. One that cannot be read stays away: answers do without. */
export function lazy(name, read) {
  if (!found.has(name)) {
    found.set(name, null);
    read().then((library) => {
      found.set(name, library);
      for (const listener of listeners) listener();
    }, () => {});
  }
  return found.get(name);
}

/** `listener()` is called when a library has come. */
export function onLibrary(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
