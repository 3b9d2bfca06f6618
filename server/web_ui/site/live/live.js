// The live view: what the engine does, from the server's step feed.

import { html } from "../vendor/preact.js";
import { useFeed, useTabShown } from "./feed.js";
import { count } from "./format.js";
import { History } from "./history.js";
import { Now } from "./now.js";
import { Steps } from "./steps.js";
import { Requests } from "./timelineview.js";

const SAYS = {
  connecting: () => "Connecting.",
  reading: () => "Connected.",
  reconnecting: ({ message }) => `${message} Reconnecting.`,
  refused: ({ message }) => message,
};

function Link({ link, dropped, again }) {
  return html`<p class=${`link ${link.status}`} role="status">
    <span class="lamp" aria-hidden="true"></span>${SAYS[link.status](link)}
    ${dropped > 0 && html` <span class="quiet">${count(dropped)} records were dropped, because this page reads too slowly.</span>`}
    ${link.status === "refused" && html` <button onClick=${again}>Try again</button>`}
  </p>`;
}

/** `shown`: whether the view is in front. It reads the feed only then, and only while the tab is in front too. */
export function Live({ shown }) {
  const active = useTabShown() && shown;
  const [state, link, again] = useFeed(active);
  if (link.status === "none") {
    return html`<p role="status">This server has no step feed, so there is nothing to show.</p>`;
  }
  return html`<div class="live">
    <${Link} link=${link} dropped=${state.dropped} again=${again} />
    ${state.hello && html`<div class="cards">
      <${Steps} state=${state} />
      <${Now} state=${state} />
      <${Requests} state=${state} read=${link.status === "reading" && !state.joined} />
      <${History} active=${active} hello=${state.hello} />
    </div>`}
  </div>`;
}
