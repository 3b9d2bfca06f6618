// A model's text as elements that can do no harm. What a model writes is a stranger's: raw HTML in it is shown, not obeyed.

import { Marked } from "../vendor/marked.js";
import { highlighted } from "./highlight.js";
import * as maths from "./maths.js";

const escaped = (text) =>
  text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: maths.extensions(escaped),
  renderer: {
    code({ text, lang }) {
      const name = /^[\w+#-]+/.exec(lang ?? "")?.[0].toLowerCase() ?? "";
      return `<pre><code class="language-${name}">${highlighted(text, name) ?? escaped(text)}</code></pre>`;
    },
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => `[image: ${escaped(text || href)}]`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // The page has headings of its own above these.
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

// Of code and maths; a model has none of its own, since its HTML is shown as text.
const CLASSES = /^(?:language-[\w+#-]*|maths(?: display)?|hljs-[\w-]+(?: \w+_)*)$/;

// An instance of its own: hooks are kept in it.
const purify = window.DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A" && node.hasAttribute("href")) {
    node.setAttribute("rel", "noopener noreferrer");
    node.setAttribute("target", "_blank");
  }
  if (node.tagName === "PRE") node.setAttribute("tabindex", "0"); // it scrolls, so keys must reach it
});
purify.addHook("uponSanitizeAttribute", (_, attribute) => {
  if (attribute.attrName === "class" && !CLASSES.test(attribute.attrValue)) attribute.keepAttr = false;
});
const HARMLESS = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "span", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["class", "href", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const element = (name, fields, ...children) => {
  const made = Object.assign(document.createElement(name), fields);
  made.append(...children);
  return made;
};

/** Puts a bar above each block of code: its language and a button, of which `copyCode` takes the clicks. */
function withBars(fragment) {
  for (const pre of fragment.querySelectorAll("pre")) {
    const language = pre.firstChild?.className?.replace("language-", "") ?? "";
    const bar = element("div", { className: "bar" },
      element("span", { className: "quiet" }, language),
      element("button", { type: "button", className: "small copy" }, "Copy code"));
    const block = element("div", { className: "block" }, bar);
    pre.replaceWith(block);
    block.append(pre);
  }
}

/** The button of a block of code that was clicked, and its code; null: something else was. */
export function copyCode({ target }) {
  const button = target.closest("button.copy");
  return button && { button, code: button.closest(".block").querySelector("pre").textContent };
}

/** The text as a fragment of the document. */
export function toFragment(text) {
  const fragment = purify.sanitize(marked.parse(text), HARMLESS);
  maths.draw(fragment);
  withBars(fragment);
  return fragment;
}
