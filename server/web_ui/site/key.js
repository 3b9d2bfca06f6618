// The dialog that asks for the API key, on every page.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { onKeyNeeded } from "./api.js";

export function KeyDialog() {
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
    ${ask && html`<form onSubmit=${submit}>
      <h2 id="key-title">API key</h2>
      ${ask.wrong && html`<p class="bad" role="alert">The server does not know this key.</p>`}
      <p><label for="key">This server asks for a key. It is kept for this tab alone.</label></p>
      <p><input id="key" name="key" type="password" required autocomplete="off" /></p>
      <p><button class="main">Use it</button> <button type="button" onClick=${() => close(null)}>Cancel</button></p>
    </form>`}
  </dialog>`;
}
