// The frame: which view is shown, and what is known of the server.

import { html, render, useEffect, useState } from "./vendor/preact.js";
import { json } from "./api.js";
import { Header } from "./header.js";
import { KeyDialog } from "./key.js";
import { Play } from "./play/play.js";
import { Live } from "./live/live.js";

const VIEWS = { play: ["Playground", Play], live: ["Live", Live] };
const viewOf = (hash) => (hash.slice(1).split("/")[0] in VIEWS ? hash.slice(1).split("/")[0] : "play");

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
    <${Header} current=${view} state=${server && `${server.capabilities.model} · ${server.version}`} />
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
