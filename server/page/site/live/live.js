// The live view: what the engine does.

import { html } from "../vendor/preact.js";

/** `server`: what app.js knows of the server, null until it is read; `shown`: whether the view is in front. */
export function Live({ server, shown }) {
  return html`<p class="quiet">${server && shown ? "steps" : ""}</p>`;
}
