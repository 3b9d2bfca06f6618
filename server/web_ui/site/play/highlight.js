// Code as HTML with its words marked, by the grammar of its language.

import { lazy } from "./library.js";

/** The grammars of vendor/highlight, and other names of their languages. */
const LANGUAGES = {
  bash: ["console", "sh", "shell", "zsh"],
  c: ["h"],
  cpp: ["c++", "cc", "cxx", "hpp"],
  css: [],
  diff: ["patch"],
  go: ["golang"],
  java: [],
  javascript: ["cjs", "js", "jsx", "mjs"],
  json: ["jsonc"],
  python: ["py", "python3"],
  rust: ["rs"],
  sql: [],
  typescript: ["ts", "tsx"],
  xml: ["html", "svg", "xhtml"],
  yaml: ["yml"],
};
const NAMES = new Map(Object.entries(LANGUAGES).flatMap(([name, others]) => [name, ...others].map((one) => [one, name])));

async function withGrammar(language) {
  const [{ default: core }, { default: grammar }] = await Promise.all([
    import("../vendor/highlight/core.js"), import(`../vendor/highlight/${language}.js`),
  ]);
  core.registerLanguage(language, grammar);
  return core;
}

/** HTML of the code, or null where its language is unknown or its grammar has not come yet. */
export function highlighted(code, name) {
  const language = NAMES.get(name);
  const core = language && lazy(language, () => withGrammar(language));
  return core ? core.highlight(code, { language, ignoreIllegals: true }).value : null;
}
