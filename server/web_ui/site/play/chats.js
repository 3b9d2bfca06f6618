// The list of conversations, and their export and import.

import { html, useRef, useState } from "../vendor/preact.js";
import { store } from "./store.js";

function Row({ one, current, onPicked }) {
  const [renaming, setRenaming] = useState(false);
  const rename = (event) => {
    event.preventDefault();
    store.rename(one.id, new FormData(event.target).get("title"));
    setRenaming(false);
  };
  if (renaming) {
    return html`<li><form class="row" onSubmit=${rename} onKeyDown=${(event) => { if (event.key === "Escape") setRenaming(false); }}>
      <input name="title" aria-label="New title" value=${one.title} maxlength="200" ref=${(input) => input?.focus()} />
      <button class="small">Rename</button>
    </form></li>`;
  }
  const remove = () => { if (confirm(`Delete "${one.title}"?`)) store.remove(one.id); };
  return html`<li class="row">
    <button class="pick" aria-current=${current ? "true" : undefined} onClick=${() => { store.select(one.id); onPicked(); }}>${one.title}</button>
    <button class="small" aria-label=${`Rename ${one.title}`} title="Rename" onClick=${() => setRenaming(true)}>✎</button>
    <button class="small" aria-label=${`Delete ${one.title}`} title="Delete" onClick=${remove}>×</button>
  </li>`;
}

export function Chats({ chats, current, onPicked }) {
  const [wanted, setWanted] = useState("");
  const chosen = useRef(null);
  const found = chats.filter(({ title }) => title.toLowerCase().includes(wanted.toLowerCase()));
  const taken = async (event) => {
    const [file] = event.target.files;
    if (file) await store.import(file);
    event.target.value = "";
  };
  return html`
    <input type="search" aria-label="Search titles" placeholder="Search titles" value=${wanted}
      onInput=${(event) => setWanted(event.target.value)} />
    <ul class="chats">
      ${found.map((one) => html`<${Row} key=${one.id} one=${one} current=${one.id === current} onPicked=${onPicked} />`)}
    </ul>
    ${found.length === 0 && html`<p class="quiet">${chats.length ? "No title has this." : "Conversations are kept in this browser alone."}</p>`}
    <div class="row">
      <button class="small" disabled=${found.length === 0} onClick=${() => store.export(found.map(({ id }) => id))}>Export</button>
      <button class="small" onClick=${() => chosen.current.click()}>Import</button>
      <input ref=${chosen} type="file" accept="application/json,.json" aria-label="File to import" hidden onChange=${taken} />
    </div>`;
}
