// The frame: which view is shown, what is known of the server, and the dialog that asks for a key.

import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { json, onKeyNeeded } from "./api.js";
import { Play } from "./play/play.js";
import { Live } from "./live/live.js";

const VIEWS = { play: ["Playground", Play], live: ["Live", Live] };
const viewOf = (hash) => (hash.slice(1).split("/")[0] in VIEWS ? hash.slice(1).split("/")[0] : "play");

function KeyDialog() {
  const dialog = useRef(null);
  const [ask, setAsk] = useState(null);
  useEffect(() => {
    onKeyNeeded((wrong) => new Promise((resolve) => setAsk({ wrong, resolve })));
  }, []);
  useEffect(() => {
    if (ask && !dialog.current.open) dialog.current.showModal();
  }, [ask]);
  const close = (given) => { dialog.current.close(); ask?.resolve(given); setAsk(null); };
  const submit = (event) => { event.preventDefault(); close(new FormData(event.target).get("key").trim()); };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onCancel=${() => close(null)}>
    <form onSubmit=${submit}>
      <h2 id="key-title">API key</h2>
      ${ask?.wrong && html`<p class="bad" role="alert">The server does not know this key.</p>`}
      <p><label for="key">This server asks for a key. It is kept for this tab alone.</label></p>
      <p><input id="key" name="key" type="password" required autocomplete="off"></p>
      <p><button class="main">Use it</button> <button type="button" onClick=${() => close(null)}>Cancel</button></p>
    </form>
  </dialog>`;
}

/** What the server is: /v1/models, /capabilities, /openapi.json and /version, read once; again after `reload`. */
function useServer() {
  const [server, setServer] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const load = async () => {
    try {
      const [models, capabilities, openapi, { version }] = await Promise.all(
        ["v1/models", "capabilities", "openapi.json", "version"].map((path) => json(path)),
      );
      setServer({ models: models.data, capabilities, openapi, version });
      setTrouble(null);
    } catch (error) {
      setTrouble(error.message);
    }
  };
  useEffect(() => { load(); }, []);
  return [server, trouble, load];
}

function App() {
  const [view, setView] = useState(viewOf(location.hash));
  const [server, trouble, reload] = useServer();
  useEffect(() => {
    const changed = () => setView(viewOf(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => { document.title = `${VIEWS[view][0]} · jaxgen`; }, [view]);
  return html`
    <header>
      <h1>jaxgen</h1>
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(([name, [title]]) => html`
          <a href=${`#${name}`} aria-current=${name === view ? "page" : undefined}>${title}</a>`)}
        <a href="docs">API</a>
      </nav>
      <span class="state quiet">${server && `${server.capabilities.model} · ${server.version}`}</span>
    </header>
    ${trouble && html`<p class="notice bad" role="alert">${trouble} <button onClick=${reload}>Try again</button></p>`}
    <main>
      ${Object.entries(VIEWS).map(([name, [title, View]]) => html`
        <section key=${name} aria-label=${title} hidden=${name !== view}>
          <${View} server=${server} shown=${name === view} />
        </section>`)}
    </main>
    <${KeyDialog} />`;
}

render(html`<${App} />`, document.getElementById("app"));
