// The head of every page: where one can go, and what is served.

import { html } from "./vendor/preact.js";

const PLACES = { play: ["./#play", "Playground"], live: ["./#live", "Live"], docs: ["docs", "API"] };

/** `current`: the place that is shown; `state`: a few words about the server. */
export const Header = ({ current, state }) => html`<header>
  <h1>jaxgen</h1>
  <nav aria-label="Views">
    ${Object.entries(PLACES).map(([name, [address, title]]) => html`
      <a href=${address} aria-current=${name === current ? "page" : undefined}>${title}</a>`)}
  </nav>
  <span class="state quiet">${state}</span>
</header>`;
