// The playground: conversations on the left, the one that is shown in the middle, its parameters on the right.

import { html, useEffect, useLayoutEffect, useReducer, useState } from "../vendor/preact.js";
import { Composer } from "./composer.js";
import { Chats } from "./chats.js";
import { Settings } from "./settings.js";
import { Thread } from "./thread.js";
import { store } from "./store.js";

const wide = matchMedia("(min-width: 64rem)");

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

/** `[shown, toggle]` of the panels by name. On a narrow screen they are over the conversation, one at a time. */
function usePanels() {
  const all = (shown) => ({ conversations: shown, parameters: shown });
  const [shown, setShown] = useState(all(wide.matches));
  useEffect(() => {
    const changed = () => setShown(all(wide.matches));
    wide.addEventListener("change", changed);
    return () => wide.removeEventListener("change", changed);
  }, []);
  // Before the next key can come.
  useLayoutEffect(() => {
    if (!wide.matches) document.querySelector(".play .side:not([hidden])")?.focus();
  }, [shown]);
  return [shown, (name) => setShown({ ...(wide.matches ? shown : all(false)), [name]: !shown[name] })];
}

function Toggle({ name, panel, shown, toggle }) {
  return html`<button aria-expanded=${String(shown[panel])} aria-controls=${panel} onClick=${() => toggle(panel)}>${name}</button>`;
}

function Panel({ name, label, shown, children }) {
  return html`<aside id=${name} class="side" aria-label=${label} tabindex="-1" hidden=${!shown[name]}>${children}</aside>`;
}

/** `server`: what app.js knows of the server, null until it is read; `shown`: whether the view is in front. */
export function Play({ server, shown }) {
  const { chat, busy, problem, said } = useStore();
  const [panels, toggle] = usePanels();
  const over = wide.matches ? undefined : Object.keys(panels).find((name) => panels[name]);
  useEffect(() => { if (server) store.begin(server); }, [server]);
  useLayoutEffect(() => {
    const pressed = (event) => {
      if (event.key !== "Escape" || !shown || document.querySelector("dialog[open]")) return;
      if (!over) return store.stop();
      toggle(over);
      document.querySelector(`[aria-controls=${over}]`).focus();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [shown, over]);
  useEffect(() => { if (busy && over) toggle(over); }, [busy]);
  if (!server || !store.server) return null;
  const picked = () => { if (over) toggle(over); };
  return html`<div class="play">
    <div class="bar">
      <${Toggle} name="Chats" panel="conversations" shown=${panels} toggle=${toggle} />
      <button onClick=${() => store.create()}>New</button>
      <h2>${chat.title || "New conversation"}</h2>
      <${Mode} chat=${chat} conversations=${server.capabilities.conversations} />
      <${Toggle} name="Parameters" panel="parameters" shown=${panels} toggle=${toggle} />
    </div>
    <div class="columns">
      <${Panel} name="conversations" label="Conversations" shown=${panels}>
        <${Chats} chats=${store.chats} current=${chat.id} onPicked=${picked} />
      <//>
      <div class="talk">
        <${Thread} key=${chat} chat=${chat} busy=${busy} shown=${shown} server=${server} />
        <div class="foot">
          ${problem && html`<p class="problem bad" role="alert">
            ${problem.message} <button onClick=${() => store.fail(null)}>Dismiss</button></p>`}
          <${Composer} chat=${chat} busy=${busy} shown=${shown} />
        </div>
        <p class="only-read" role="status" aria-live="polite">${said}</p>
      </div>
      <${Panel} name="parameters" label="Parameters" shown=${panels}>
        <${Settings} chat=${chat} server=${server} problem=${problem} />
      <//>
    </div>
  </div>`;
}
