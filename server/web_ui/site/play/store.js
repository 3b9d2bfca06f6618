// The playground's state: the list of conversations, the one that is shown, and answers on their way.

import * as database from "./database.js";
import { PATHS, bodyFor, startSettings } from "./body.js";
import { forked, switched, without } from "./branches.js";
import { compare } from "./compare.js";
import { download, readImport, toFile } from "./exchange.js";
import { ask, emptyAnswer } from "./stream.js";

const SHOWN = "jaxgen.conversation"; // in the tab's storage: a reload shows the same conversation
const SAVE_EVERY_MS = 2000;

const emptyChat = (mode, settings = {}) => ({
  id: database.newId(), title: "", mode, system: "", settings: { ...settings }, messages: [], sent: null,
  updated: 0, revision: 0,
});

export class Store {
  chats = [];
  chat = emptyChat("chat");
  server = null;
  /** What went wrong, in words, with the field of the form that it is about, or null. */
  problem = null;
  /** What screen readers are told. */
  said = "";
  draft = () => {};
  #running = new Map(); // by conversation: its AbortController
  #listeners = new Set();
  #saving = null;

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** `set(text)` puts a text where the user writes. */
  onDraft(set) {
    this.draft = set;
    return () => { if (this.draft === set) this.draft = () => {}; };
  }

  #emit = () => { for (const listener of this.#listeners) listener(); };

  #emitSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#emit();
    });
  }

  get busy() { return this.#running.has(this.chat); }

  fail(problem) {
    this.problem = problem && { message: problem.message ?? problem, field: problem.field ?? null };
    this.#emit();
  }

  /** What only the user's browser may refuse: storage. The page continues without. */
  async #kept(work) {
    try {
      return await work();
    } catch (error) {
      this.fail(error);
      return undefined;
    }
  }

  async begin(server) {
    const first = this.server === null;
    this.server = server;
    if (!first) return this.#emit();
    this.chat.mode = server.capabilities.conversations ? "chat" : "completion";
    this.chat.settings = startSettings(server);
    database.onOthers((id) => this.#heard(id));
    await this.#kept(async () => {
      this.chats = await database.titles();
      const last = sessionStorage.getItem(SHOWN);
      if (this.chats.some(({ id }) => id === last)) this.chat = (await database.load(last)) ?? this.chat;
    });
    this.#emit();
  }

  async #heard(id) {
    await this.#kept(async () => {
      this.chats = await database.titles();
      const changed = this.chat.id === id && !this.busy && (await database.load(id));
      if (changed && changed.revision > this.chat.revision && this.chat.id === id && !this.busy) this.chat = changed;
    });
    this.#emit();
  }

  async save(chat = this.chat) {
    await this.#kept(async () => {
      const copied = await database.save(chat);
      if (copied) this.problem = { message: "Another tab changed this conversation too: this tab's is kept as a copy.", field: null };
      if (chat === this.chat) sessionStorage.setItem(SHOWN, chat.id);
      this.chats = await database.titles();
    });
    this.#emit();
  }

  /** Change fields of the conversation; one that has messages is kept soon. */
  change(fields) {
    Object.assign(this.chat, fields);
    const { chat } = this;
    clearTimeout(this.#saving);
    if (chat.messages.length) this.#saving = setTimeout(() => this.save(chat), 400);
    this.#emit();
  }

  set(name, value) {
    if (this.problem?.field === name) this.problem = null;
    this.change({ settings: { ...this.chat.settings, [name]: value } });
  }

  /** The parameters that a first conversation has. */
  reset() { this.change({ settings: startSettings(this.server) }); }

  #show(chat) {
    this.chat = chat;
    this.problem = null;
    sessionStorage.setItem(SHOWN, chat.id);
    this.#emit();
  }

  create() { this.#show(emptyChat(this.chat.mode, this.chat.settings)); }

  async select(id) {
    const running = [...this.#running.keys()].find((chat) => chat.id === id);
    const found = running ?? (await this.#kept(() => database.load(id)));
    if (found) this.#show(found);
  }

  async rename(id, title) {
    const chat = this.chat.id === id ? this.chat : await this.#kept(() => database.load(id));
    if (!chat) return;
    chat.title = title.trim().slice(0, 200) || chat.title;
    await this.save(chat);
  }

  async remove(id) {
    for (const [chat, controller] of this.#running) if (chat.id === id) controller.abort();
    await this.#kept(async () => {
      await database.remove(id);
      this.chats = await database.titles();
    });
    if (this.chat.id === id) this.create();
    this.#emit();
  }

  async export(ids) {
    await this.#kept(async () => {
      const found = await Promise.all(ids.map((id) => database.load(id)));
      download("jaxgen-conversations.json", toFile(found.filter(Boolean)));
    });
  }

  async import(file) {
    await this.#kept(async () => {
      const chats = (await readImport(file)).map((found) => ({ ...emptyChat(found.mode), ...found }));
      for (const chat of chats) await database.save(chat);
      this.chats = await database.titles();
      if (chats.length) this.#show(chats[0]);
    });
  }

  /** Send the user's text and files. Returns whether it was sent: not where a field of the form is wrong. */
  send(text, files = []) {
    const { chat } = this;
    const messages = [...chat.messages, { role: "user", content: text, ...(files.length ? { files } : {}) }];
    const title = chat.title || text.trim().split("\n")[0].slice(0, 60) || files[0]?.name || "Untitled";
    return this.#answer({ ...chat, messages }, messages.length, { title });
  }

  /** Send results of the tools that the last message called. */
  giveResults(results) {
    const messages = [...this.chat.messages, ...results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }))];
    return this.#answer({ ...this.chat, messages }, messages.length);
  }

  /** Ask for another version of the answer at `index`. */
  regenerate(index) { return this.#answer(this.chat, index, {}, forked(this.chat.messages, index)); }

  /** Change a message; `resend`: as another version of it, which is answered. */
  edit(index, content, resend) {
    const { messages } = this.chat;
    const edited = { ...messages[index], content };
    if (resend) edited.branches = forked(messages, index);
    const changed = { messages: messages.with(index, edited) };
    if (resend) return this.#answer({ ...this.chat, ...changed }, index + 1);
    this.change(changed);
    return true;
  }

  /** Show version `at` of the message at `index`, with what came after it. */
  version(index, at) { this.change({ messages: switched(this.chat.messages, index, at) }); }

  /** Whether the message is the answer to what was sent last. */
  isSent(message) {
    const { sent, messages } = this.chat;
    // Conversations of earlier versions of this page have the index of the message instead.
    return Boolean(sent && message.answer) && message.answer.began === (sent.began ?? messages[sent.index]?.answer?.began);
  }

  delete(index) { this.change({ messages: without(this.chat.messages, index) }); }

  stop() { this.#running.get(this.chat)?.abort(); }

  /** `asked`: the conversation with the messages to send, of which those before `end` count; `branches`: the answer's. */
  #answer(asked, end, fields = {}, branches = undefined) {
    const { chat } = this;
    if (this.busy) return false;
    let body;
    try {
      body = bodyFor(asked, end, this.server);
    } catch (error) {
      this.fail(error);
      return false;
    }
    const message = { role: "assistant", content: "", answer: emptyAnswer(), ...(branches ? { branches } : {}) };
    Object.assign(chat, fields, { messages: [...asked.messages.slice(0, end), message] });
    chat.sent = { path: PATHS[chat.mode], body, began: message.answer.began };
    this.problem = null;
    this.#run(chat, message, body);
    return true;
  }

  async #run(chat, message, body) {
    const controller = new AbortController();
    this.#running.set(chat, controller);
    this.said = "Answering.";
    this.#emit();
    await this.save(chat);
    let saved = Date.now();
    await ask(PATHS[chat.mode], body, message, controller.signal, () => {
      this.#emitSoon();
      if (Date.now() - saved > SAVE_EVERY_MS) {
        saved = Date.now();
        database.save(chat).catch(() => {}); // the save at the end says what is wrong
      }
    });
    this.#running.delete(chat);
    this.said = ended(message);
    await this.save(chat);
  }

  /** Send what was sent for the answer at `index` once more and say where the answers differ. */
  async again(index) {
    const { chat } = this;
    const message = chat.messages[index];
    if (this.busy || !this.isSent(message)) return;
    const { path, body } = chat.sent;
    const second = { role: "assistant", content: "", answer: emptyAnswer() };
    const controller = new AbortController();
    this.#running.set(chat, controller);
    const show = (again) => {
      message.answer.again = again;
      this.#emitSoon();
    };
    show({ same: null, words: "Asking once more …" });
    await ask(path, body, second, controller.signal, () => show({ same: null, words: `Asking once more … ${second.content.length} characters` }));
    this.#running.delete(chat);
    show(compare(message, second, body));
    this.said = message.answer.again.words;
    await this.save(chat);
  }
}

function ended({ content, tool_calls: calls, answer }) {
  const text = content.length > 600 ? `${content.slice(0, 600)} …` : content;
  const called = calls?.length ? ` Calls ${calls.map((call) => call.function.name).join(", ")}.` : "";
  return `${answer.error ?? (answer.state === "stopped" ? "Stopped." : "")} Answer: ${text}${called}`.trim();
}

export const store = new Store();
