// A JSON schema of /openapi.json in words, and as a list of fields that opens level by level.

import { html, useState } from "../vendor/preact.js";

/** The schema that a reference leads to, and its name; a schema without a reference has none. */
export function resolve(document, schema) {
  const path = schema.$ref?.split("/").slice(1);
  if (!path) return { name: "", schema };
  return { name: path.at(-1).split("__").at(-1), schema: path.reduce((at, part) => at?.[part], document) ?? {} };
}

const choices = (schema) => schema.anyOf ?? schema.oneOf ?? schema.allOf;
const literal = (value) => JSON.stringify(value);

/** The type in words, as `array of string, or null`. */
export function typeOf(document, schema) {
  const { name, schema: found } = resolve(document, schema);
  if (name) return name;
  if (found.const !== undefined) return literal(found.const);
  if (found.enum) return found.enum.map(literal).join(" or ");
  if (choices(found)) return choices(found).map((one) => typeOf(document, one)).join(" or ");
  if (found.type === "array") return found.items ? `array of ${typeOf(document, found.items)}` : "array";
  const values = found.additionalProperties;
  if (found.type === "object" && values?.type) return `object of ${typeOf(document, values)}`;
  const type = found.type ?? "any";
  return Array.isArray(type) ? type.join(" or ") : type;
}

/** The schemas with fields that a value of this schema may have, by name, each once. */
export function partsOf(document, schema, found = new Map()) {
  const { name, schema: target } = resolve(document, schema);
  if (target.properties) found.set(name || "fields", target);
  else {
    const inside = [...(choices(target) ?? []), target.items, target.additionalProperties];
    for (const one of inside) if (one && typeof one === "object") partsOf(document, one, found);
  }
  return found;
}

const LIMITS = [
  ["minimum", "at least"], ["exclusiveMinimum", "more than"], ["maximum", "at most"], ["exclusiveMaximum", "less than"],
  ["minLength", "characters, at least"], ["maxLength", "characters, at most"],
  ["minItems", "items, at least"], ["maxItems", "items, at most"],
  ["pattern", "matches"], ["format", "format"],
];

/** What else is known of a value: its limits, wherever among its choices they stand, and its default. */
export function limitsOf(schema) {
  const said = LIMITS.filter(([key]) => schema[key] !== undefined).map(([key, words]) => `${words} ${schema[key]}`);
  const inside = [...(choices(schema) ?? []), ...(schema.items ? [schema.items] : [])].flatMap(limitsOf);
  const standard = schema.default === undefined || schema.default === null ? [] : [`default ${literal(schema.default)}`];
  return [...new Set([...said, ...inside, ...standard])];
}

/** Text of a docstring: paragraphs, and code between double backquotes. */
export const Prose = ({ text }) => text.split(/\n\s*\n/).map((paragraph) => html`
  <p>${paragraph.split("``").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))}</p>`);

/** `<details>` whose content is made when it is first opened, so that schemas may lead back to themselves. */
export function Lazy({ title, label, children }) {
  const [opened, setOpened] = useState(false);
  return html`<details onToggle=${(event) => event.currentTarget.open && setOpened(true)}>
    <summary aria-label=${label}>${title}</summary>
    ${opened && children()}
  </details>`;
}

function Field({ document, name, schema, required }) {
  const limits = limitsOf(schema);
  return html`<li>
    <code class="name">${name}</code> <span class="type">${typeOf(document, schema)}</span>
    ${required && html` <strong>required</strong>`}
    ${limits.length > 0 && html` <span class="quiet">${limits.join(", ")}</span>`}
    ${schema.description && html`<${Prose} text=${schema.description} />`}
    ${[...partsOf(document, schema)].map(([part, target]) => html`
      <${Lazy} title=${part} label=${`${part} in ${name}`}>
        ${() => html`<${Fields} document=${document} schema=${target} />`}
      <//>`)}
  </li>`;
}

/** The fields of an object. */
export function Fields({ document, schema }) {
  const required = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties ?? {});
  return html`
    ${schema.description && html`<${Prose} text=${schema.description} />`}
    <ul class="fields">
      ${names.map((name) => html`<${Field} key=${name} document=${document} name=${name}
        schema=${schema.properties[name]} required=${required.has(name)} />`)}
    </ul>`;
}
