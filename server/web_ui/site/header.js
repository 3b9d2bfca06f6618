// The head of every page: where one can go, what is served, and the choice of a theme.

import { html, useState } from "./vendor/preact.js";

const PLACES = { play: ["./#play", "Playground"], live: ["./#live", "Live"], docs: ["docs", "API"] };
const THEME = "jaxgen.theme";

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem(THEME) ?? "");
  const choose = ({ target: { value } }) => {
    if (value) localStorage.setItem(THEME, value);
    else localStorage.removeItem(THEME);
    dispatchEvent(new Event("storage")); // theme.js listens; browsers tell other tabs alone
    setTheme(value);
  };
  return html`<select class="theme" aria-label="Theme" title="Theme" value=${theme} onChange=${choose}>
    <option value="">System</option>
    <option value="light">Light</option>
    <option value="dark">Dark</option>
  </select>`;
}

/** `current`: the place that is shown; `state`: a few words about the server. */
export const Header = ({ current, state }) => html`<header>
  <h1>jaxgen</h1>
  <nav aria-label="Views">
    ${Object.entries(PLACES).map(([name, [address, title]]) => html`
      <a href=${address} aria-current=${name === current ? "page" : undefined}>${title}</a>`)}
  </nav>
  <span class="state quiet" title=${state}>${state}</span>
  <${Theme} />
</header>`;
