// Conversations in the browser's own database (IndexedDB), which all tabs of this server's address share.

import { BASE } from "../api.js";

/** Most conversations that are kept. */
export const MAX_CHATS = 1000;

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

// Servers below different prefixes of one address have their own.
const NAME = `jaxgen ${BASE.pathname}`;
let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("chats", { keyPath: "id" });
      request.result.createObjectStore("titles", { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function within(mode, work) {
  const transaction = (await open()).transaction(["chats", "titles"], mode);
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
  ended.catch(() => {}); // where `work` fails first, its error is the one that is told
  const found = await work(transaction.objectStore("chats"), transaction.objectStore("titles"));
  if (mode === "readwrite") await ended;
  return found;
}

const channel = new BroadcastChannel(NAME);
/** `heard(id)` is called when another tab has changed or removed a conversation. */
export const onOthers = (heard) => { channel.onmessage = ({ data }) => heard(data); };

const titleOf = ({ id, title, mode, updated, revision }) => ({ id, title, mode, updated, revision });

/** What lists show of each conversation, the last changed first. */
export async function titles() {
  const found = await within("readonly", (_, store) => done(store.getAll()));
  return found.sort((one, other) => other.updated - one.updated);
}

export const load = (id) => within("readonly", (store) => done(store.get(id)));

export async function remove(id) {
  await within("readwrite", (chats, store) => Promise.all([done(chats.delete(id)), done(store.delete(id))]));
  channel.postMessage(id);
}

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

async function write(chat) {
  const written = await within("readwrite", async (chats, store) => {
    const stored = await done(store.get(chat.id));
    const conflict = stored !== undefined && stored.revision !== chat.revision;
    if (stored === undefined || conflict) {
      const count = await done(store.count());
      if (count >= MAX_CHATS) throw new Error(`There are ${count} conversations, the most that are kept.`);
    }
    const copy = conflict ? { id: newId(), title: `${chat.title} (copy)` } : {};
    const fields = { ...copy, revision: conflict ? 1 : chat.revision + 1, updated: Date.now() };
    const kept = { ...chat, ...fields };
    await Promise.all([done(chats.put(kept)), done(store.put(titleOf(kept)))]);
    return fields;
  });
  Object.assign(chat, written);
  channel.postMessage(chat.id);
  return "id" in written;
}

let last = Promise.resolve();

/**
 * Keep a conversation, after earlier ones are kept. One that another tab has changed since it was read is kept
 * as well, under a new id, which `chat` gets: returns whether it was. Throws an Error that says what to do where
 * nothing more fits.
 */
export async function save(chat) {
  const written = last.then(() => write(chat));
  last = written.catch(() => {});
  try {
    return await written;
  } catch (error) {
    const why = error?.name === "QuotaExceededError" ? "The browser's storage is full." : error?.message ?? `${error}`;
    throw new Error(`This conversation is not kept: ${why} Export conversations that you need, and delete some.`);
  }
}
