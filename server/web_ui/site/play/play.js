// The playground: conversations on the left, the one that is shown in the middle, its parameters on the right.

import { html, useEffect, useReducer, useState } from "../vendor/preact.js";
import { Composer } from "./composer.js";
import { Chats } from "./chats.js";
import { Settings } from "./settings.js";
import { Thread } from "./thread.js";
import { store } from "./store.js";

const isWide = () => matchMedia("(min-width: 64rem)").matches;

function useStore() {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => store.subscribe(again), []);
  return store;
}

function Mode({ chat, conversations }) {
  return html`<label class="only-read" for="mode">Mode</label>
    <select id="mode" value=${chat.mode} disabled=${store.busy} onChange=${(event) => store.change({ mode: event.target.value })}>
      <option value="chat" disabled=${!conversations}>Chat${conversations ? "" : " (this model has no chat template)"}</option>
      <option value="completion">Completion</option>
    </select>`;
}


function Toggle({ name, panel, shown, onToggle }) {
  return html`<button aria-expanded=${String(shown)} aria-controls=${panel} onClick=${onToggle}>${name}</button>`;
}

/** `server`: what app.js knows of the server, null until it is read; `shown`: whether the view is in front. */
export function Play({ server, shown }) {
  const { chat, busy, problem, said } = useStore();
  const [chatsShown, showChats] = useState(isWide);
  const [settingsShown, showSettings] = useState(isWide);
  useEffect(() => { if (server) store.begin(server); }, [server]);
  useEffect(() => {
    const pressed = (event) => {
      if (event.key === "Escape" && shown && !document.querySelector("dialog[open]")) store.stop();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [shown]);
  if (!server || !store.server) return null;
  const picked = () => { if (!isWide()) showChats(false); };
  return html`<div class="play">
    <div class="bar">
      <${Toggle} name="Chats" panel="conversations" shown=${chatsShown} onToggle=${() => showChats(!chatsShown)} />
      <button onClick=${() => store.create()}>New</button>
      <h2>${chat.title || "New conversation"}</h2>
      <${Mode} chat=${chat} conversations=${server.capabilities.conversations} />
      <${Toggle} name="Parameters" panel="parameters" shown=${settingsShown} onToggle=${() => showSettings(!settingsShown)} />
    </div>
    <div class="columns">
      <aside id="conversations" class="side" aria-label="Conversations" hidden=${!chatsShown}>
        <${Chats} chats=${store.chats} current=${chat.id} onPicked=${picked} />
      </aside>
      <div class="talk">
        <${Thread} key=${chat} chat=${chat} busy=${busy} shown=${shown} server=${server} />
        ${problem && html`<p class="problem bad" role="alert">
          ${problem.message} <button onClick=${() => store.fail(null)}>Dismiss</button></p>`}
        <${Composer} chat=${chat} busy=${busy} shown=${shown} />
        <p class="only-read" role="status" aria-live="polite">${said}</p>
      </div>
      <aside id="parameters" class="side" aria-label="Parameters" hidden=${!settingsShown}>
        <${Settings} chat=${chat} server=${server} problem=${problem} />
      </aside>
    </div>
  </div>`;
}
