// A file in a message: its name and size, which open to its text.

import { html } from "../vendor/preact.js";
import { bytes } from "../live/format.js";

const size = (text) => bytes(new TextEncoder().encode(text).length);

/** `onRemove`: makes a button that takes the file out; a message that was sent has none. */
export function Chip({ file: { name, text }, onRemove }) {
  return html`<div class="chip">
    <details><summary>${name} <span class="quiet">${size(text)}</span></summary><pre tabindex="0">${text}</pre></details>
    ${onRemove && html`<button type="button" class="small" aria-label=${`Remove ${name}`} onClick=${onRemove}>×</button>`}
  </div>`;
}
