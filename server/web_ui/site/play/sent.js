// What was sent for an answer, as code to copy.

import { html, useRef, useState } from "../vendor/preact.js";
import { curl, python } from "./code.js";

/** Copy a text, and say so on the button for a moment. */
export async function copy(text, button) {
  const said = (button.dataset.said ??= button.textContent);
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers lend the clipboard to pages of https and of this machine alone; the old way works elsewhere.
    const area = document.createElement("textarea");
    area.value = text;
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = said; }, 1500);
}

const WAYS = { curl, Python: python };

export function Code({ sent }) {
  const [open, setOpen] = useState(false);
  const [way, setWay] = useState("curl");
  const shown = useRef(null);
  return html`<details class="code" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>As curl and Python</summary>
    ${open && html`
      <div class="row">
        <span role="group" aria-label="Language">${Object.keys(WAYS).map((name) => html`
          <button key=${name} class="small" aria-pressed=${String(name === way)} onClick=${() => setWay(name)}>${name}</button>`)}</span>
        <button class="small" onClick=${(event) => copy(shown.current.textContent, event.target)}>Copy code</button>
      </div>
      <pre ref=${shown} tabindex="0">${WAYS[way](sent.path, sent.body)}</pre>`}
  </details>`;
}
