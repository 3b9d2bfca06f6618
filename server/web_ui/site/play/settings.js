// The form of a request's parameters, made from the server's own description of its fields. What few set is folded.

import { html, useEffect, useMemo, useRef } from "../vendor/preact.js";
import { keyOf, numbersOf } from "./body.js";
import { rangeOf, read } from "./schema.js";
import { store } from "./store.js";

const STRUCTURES = [
  ["", "Any text", null],
  ["json_object", "JSON object", null],
  ["json_schema", "JSON schema", '{"type": "object", "properties": {"name": {"type": "string"}}}'],
  ["regex", "Regular expression", "[0-9]{4}-[0-9]{2}-[0-9]{2}"],
  ["choice", "One of a list", "yes\nno"],
  ["grammar", "Grammar (Lark or GBNF)", 'start: "yes" | "no"'],
];
const TOOL_EXAMPLE = `[{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]`;

const set = (name) => (event) => store.set(name, event.target.value);

function NumberField({ field, value, usual, problem }) {
  const key = keyOf(field.name);
  const wrong = read(field, value).problem ?? (problem?.field === key ? problem.message : null);
  const range = rangeOf(field);
  return html`<div class="field">
    <label for=${`set-${key}`}>${field.name}</label>
    <input id=${`set-${key}`} inputmode=${field.type === "integer" ? "numeric" : "decimal"} autocomplete="off" value=${value ?? ""}
      placeholder=${usual ?? ""} aria-invalid=${wrong ? "true" : undefined} aria-describedby=${`about-${key}`} onInput=${set(key)} />
    <p id=${`about-${key}`} class=${wrong ? "about bad" : "about quiet"}>
      ${wrong ?? [range, field.description].filter(Boolean).join(" · ")}</p>
  </div>`;
}

function Numbers({ fields, chat, server, problem }) {
  const usual = server.capabilities.sampling_defaults;
  return fields.map((field) => html`<${NumberField} key=${field.name} field=${field} problem=${problem}
    value=${chat.settings[keyOf(field.name)]} usual=${usual[keyOf(field.name)] ?? usual[field.name]} />`);
}

function Area({ name, label, rows = 3, placeholder, value, problem, onInput }) {
  const wrong = problem?.field === name ? problem.message : null;
  return html`<div class="field wide">
    <label for=${`set-${name}`}>${label}</label>
    <textarea id=${`set-${name}`} rows=${rows} placeholder=${placeholder ?? ""} value=${value ?? ""} spellcheck=${false}
      aria-invalid=${wrong ? "true" : undefined} aria-describedby=${wrong ? `about-${name}` : undefined} onInput=${onInput ?? set(name)}></textarea>
    ${wrong && html`<p id=${`about-${name}`} class="about bad">${wrong}</p>`}
  </div>`;
}

function Choice({ name, label, value, options, wide }) {
  return html`<div class=${wide ? "field wide" : "field"}>
    <label for=${`set-${name}`}>${label}</label>
    <select id=${`set-${name}`} value=${value ?? ""} onChange=${set(name)}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}
    </select>
  </div>`;
}

function Structure({ settings, problem }) {
  const example = STRUCTURES.find(([key]) => key === (settings.structure ?? ""))?.[2];
  return html`
    <${Choice} name="structure" wide label="Response format" value=${settings.structure} options=${STRUCTURES} />
    ${example && html`<${Area} name="structureText" label=${settings.structure === "choice" ? "Choices, one per line" : "Format"}
      rows="4" placeholder=${example} value=${settings.structureText} problem=${problem} />`}`;
}

function Tools({ settings, problem }) {
  return html`
    <${Area} name="tools" label="Tools (JSON)" rows="5" placeholder=${TOOL_EXAMPLE} value=${settings.tools} problem=${problem} />
    <${Choice} name="tool_choice" label="tool_choice" value=${settings.tool_choice}
      options=${[["", "auto"], ["required", "required"], ["none", "none"]]} />`;
}

/** A part of the form that is folded until it is opened, or a field in it is wrong. `of`: its fields in the settings. */
function Fold({ title, of, settings, problem, children }) {
  const fold = useRef(null);
  const count = of.filter((name) => settings[name]).length;
  useEffect(() => { if (of.includes(problem?.field)) fold.current.open = true; }, [problem]);
  return html`<details ref=${fold}>
    <summary>${title}${count > 0 && html` <span class="quiet">${count} set</span>`}</summary>
    <div class="settings">${children}</div>
  </details>`;
}

const FIRST = ["temperature", "top_p", "max_tokens"];

export function Settings({ chat, server, problem }) {
  const { settings } = chat;
  const fields = useMemo(() => numbersOf(server.openapi, chat.mode), [server, chat.mode]);
  const isFirst = ({ name }) => FIRST.includes(keyOf(name));
  const more = fields.filter((field) => !isFirst(field));
  const shared = { chat, server, settings, problem };
  const classes = server.capabilities.service_classes;
  return html`<form class="settings" onSubmit=${(event) => event.preventDefault()}>
    ${chat.mode === "chat" && html`<${Area} name="system" label="System prompt" value=${chat.system}
      onInput=${(event) => store.change({ system: event.target.value })} />`}
    <${Numbers} ...${shared} fields=${fields.filter(isFirst)} />
    <p class="quiet about">An empty field is not sent. The server then takes its default, which is shown in grey.</p>
    <${Fold} title="More sampling" ...${shared} of=${[...more.map(({ name }) => keyOf(name)), "stop"]}>
      <${Numbers} ...${shared} fields=${more} />
      <${Area} name="stop" label="stop: one string per line, \\n for a line break" rows="2" value=${settings.stop} />
    <//>
    <${Fold} title="Structured output" ...${shared} of=${["structure", "structureText"]}>
      <${Structure} ...${shared} />
    <//>
    ${chat.mode === "chat" && html`<${Fold} title="Tools" ...${shared} of=${["tools", "tool_choice"]}>
      <${Tools} ...${shared} />
    <//>`}
    <${Fold} title="Server" ...${shared} of=${["service_tier", "return_latency"]}>
      ${classes.length > 0 && html`<${Choice} name="service_tier" label="service_tier" value=${settings.service_tier}
        options=${[["", "(not sent)"], ...classes.map(({ name }) => [name, name])]} />`}
      <div class="field check">
        <input id="set-return_latency" type="checkbox" checked=${settings.return_latency === true}
          onChange=${(event) => store.set("return_latency", event.target.checked)} />
        <label for="set-return_latency">Show where the time went</label>
      </div>
    <//>
    <div class="row"><button type="button" class="small" onClick=${() => store.reset()}>Reset to defaults</button></div>
  </form>`;
}
