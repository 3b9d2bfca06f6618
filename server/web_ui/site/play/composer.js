// Where the user writes: text and text files, send and stop; or the results of tools that were called.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Chip } from "./chip.js";
import { textOf } from "./exchange.js";
import { store } from "./store.js";

/** The calls of the last message that have no result yet. */
export function openCalls(messages) {
  const last = messages.at(-1);
  return last?.role === "assistant" && last.answer?.state === "done" ? last.tool_calls ?? [] : [];
}

function Results({ calls }) {
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    store.giveResults(calls.map(({ id }, i) => ({ id, content: given.get(`result${i}`) })));
  };
  return html`<form class="composer" onSubmit=${submit}>
    ${calls.map((call, i) => html`<p key=${call.id}>
      <label for=${`result${i}`}>Result of <code>${call.function.name}</code></label>
      <textarea id=${`result${i}`} name=${`result${i}`} rows="2" required></textarea></p>`)}
    <div class="row"><button class="main">Send results</button></div>
  </form>`;
}

// A draft belongs to its conversation: one that is left half written is there on return.
const drafts = new Map();

const EMPTY = { text: "", files: [] };

/** `[draft, change]`: `{text, files}`; `change(of)` with `of(draft)`: the fields that change. */
function useDraft(chat) {
  const [, again] = useState(0);
  const change = (of) => {
    const draft = drafts.get(chat.id) ?? EMPTY;
    drafts.set(chat.id, { ...draft, ...of(draft) });
    again((count) => count + 1);
  };
  return [drafts.get(chat.id) ?? EMPTY, change];
}

/** Takes files that are dropped anywhere on the playground; returns what adds files to the draft. */
function useFiles(area, chat, change) {
  const add = async (files) => {
    for (const file of files) {
      try {
        const text = await textOf(file);
        change(({ files }) => ({ files: [...files, { name: file.name, text }] }));
      } catch (error) {
        store.fail(error);
      }
    }
    area.current.focus();
  };
  useEffect(() => {
    const dropped = (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      if (event.type === "drop") add([...event.dataTransfer.files]);
    };
    const view = area.current.closest(".play");
    view.addEventListener("dragover", dropped);
    view.addEventListener("drop", dropped);
    return () => { view.removeEventListener("dragover", dropped); view.removeEventListener("drop", dropped); };
  }, [chat]);
  return add;
}

function AddFiles({ add }) {
  const chosen = useRef(null);
  return html`<button type="button" class="small" onClick=${() => chosen.current.click()}>Add a text file</button>
    <input ref=${chosen} type="file" multiple aria-label="Text files to add" hidden
      onChange=${(event) => { add([...event.target.files]); event.target.value = ""; }} />`;
}

function Writing({ chat, busy, shown }) {
  const area = useRef(null);
  const [draft, change] = useDraft(chat);
  const add = useFiles(area, chat, change);
  useEffect(() => {
    // Not on a phone, where a keyboard would cover the page.
    if (shown && matchMedia("(hover: hover)").matches) area.current.focus({ preventScroll: true });
  }, [chat.id, shown]);
  useEffect(() => store.onDraft((text) => { change(() => ({ text })); area.current.focus(); }), [chat]);

  const { text, files } = draft;
  const ready = text.trim() || files.length;
  const send = () => {
    if (!busy && ready && store.send(text, files)) change(() => EMPTY);
  };
  const pressed = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${files.length > 0 && html`<div class="row">${files.map((file, at) => html`
      <${Chip} key=${at} file=${file} onRemove=${() => { change(() => ({ files: files.toSpliced(at, 1) })); area.current.focus(); }} />`)}</div>`}
    <label class="only-read" for="draft">${chat.mode === "chat" ? "Message" : "Prompt"}</label>
    <textarea id="draft" ref=${area} rows="3" value=${text} onKeyDown=${pressed}
      placeholder=${chat.mode === "chat" ? "Write a message" : "Write the beginning of a text"}
      onInput=${(event) => change(() => ({ text: event.target.value }))}></textarea>
    <div class="row">
      <${AddFiles} add=${add} />
      <span class="quiet hint">Enter sends, Shift+Enter begins a line, Esc stops</span>
      ${busy
        ? html`<button type="button" class="main" onClick=${() => store.stop()}>Stop</button>`
        : html`<button class="main" disabled=${!ready}>Send</button>`}
    </div>
  </form>`;
}

export function Composer({ chat, busy, shown }) {
  const calls = busy ? [] : openCalls(chat.messages);
  return calls.length
    ? html`<${Results} calls=${calls} />`
    : html`<${Writing} chat=${chat} busy=${busy} shown=${shown} />`;
}
