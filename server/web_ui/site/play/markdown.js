// A model's text as HTML that can do no harm. What a model writes is a stranger's: raw HTML in it is shown, not obeyed.

import { Marked } from "../vendor/marked.js";

const escaped = (text) =>
  text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
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

// An instance of its own: hooks are kept in it.
const purify = window.DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A" && node.hasAttribute("href")) {
    node.setAttribute("rel", "noopener noreferrer");
    node.setAttribute("target", "_blank");
  }
  if (node.tagName === "PRE") node.setAttribute("tabindex", "0"); // it scrolls, so keys must reach it
});
const HARMLESS = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

export const toHtml = (text) => purify.sanitize(marked.parse(text), HARMLESS);
