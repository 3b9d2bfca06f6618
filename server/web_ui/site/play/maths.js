// Maths in Markdown: found in the text, and then made MathML by elements, not by HTML.

import { lazy } from "./library.js";

const FOLDER = new URL("../vendor/", import.meta.url);
// A dollar sign is a currency or a variable of a shell more often than maths: so no blank within, no word after.
const INLINE = /^(?:\$\$[^$]{1,4000}?\$\$|\\\[[^]{1,4000}?\\\]|\\\([^]{1,4000}?\\\)|\$(?!\s)(?:\\.|[^\\$\n]){1,1000}?(?<!\s)\$(?!\w))/;
const BLOCK = /^ {0,3}(\$\$[^]{1,4000}?\$\$|\\\[[^]{1,4000}?\\\])[ \t]*(?:\n|$)/;
const isDisplay = (raw) => raw.startsWith("$$") || raw.startsWith("\\[");

/** Extensions of marked. `escaped`: makes text HTML. The formula stays in its delimiters, and `draw` looks for it. */
export const extensions = (escaped) => {
  const renderer = ({ text }) => `<code class="${isDisplay(text) ? "maths display" : "maths"}">${escaped(text)}</code>`;
  const token = (type, raw, text) => ({ type, raw, text });
  return [
    {
      name: "mathsBlock", level: "block", renderer: (found) => `<p>${renderer(found)}</p>`,
      start: (text) => text.match(/(?:^|\n) {0,3}(?:\$\$|\\\[)/)?.index,
      tokenizer(text) {
        const match = BLOCK.exec(text);
        return match ? token("mathsBlock", match[0], match[1]) : undefined;
      },
    },
    {
      name: "maths", level: "inline", renderer,
      start: (text) => text.match(/\$|\\[([]/)?.index,
      tokenizer(text) {
        const match = INLINE.exec(text);
        return match ? token("maths", match[0], match[0]) : undefined;
      },
    },
  ];
};

/** The library, which is a script and no module, and its style. */
function load() {
  document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("temml.css", FOLDER) }));
  const script = Object.assign(document.createElement("script"), { src: new URL("temml.js", FOLDER) });
  document.head.append(script);
  return new Promise((resolve, reject) => {
    script.onload = () => resolve(window.temml);
    script.onerror = reject;
  });
}

/** Draws the formulas in the fragment, once the library has come. What is no TeX stays as it was written. */
export function draw(fragment) {
  const places = fragment.querySelectorAll("code.maths");
  const temml = places.length ? lazy("temml", load) : null;
  if (!temml) return;
  for (const place of places) {
    const raw = place.textContent;
    const delimiter = raw.startsWith("$") && !raw.startsWith("$$") ? 1 : 2;
    const drawn = document.createElement("span");
    try {
      temml.render(raw.slice(delimiter, -delimiter), drawn, {
        displayMode: isDisplay(raw), throwOnError: true, trust: false, maxExpand: 1000, maxSize: [20, 20],
      });
    } catch {
      continue;
    }
    if (isDisplay(raw)) drawn.className = "display";
    place.replaceWith(drawn);
  }
}
