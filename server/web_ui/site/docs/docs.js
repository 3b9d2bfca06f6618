// What /openapi.json says, to read: each route with its parameters, body, responses and an example.

import { html, render, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { json } from "../api.js";
import { Header } from "../header.js";
import { KeyDialog } from "../key.js";
import { curlOf } from "./curl.js";
import { Fields, Lazy, partsOf, typeOf } from "./schema.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const slug = (method, path) => `${method}${path.replace(/[^\w]+/g, "-").replace(/-$/, "")}`;

/** Routes in the order of the document, in groups of what stands first in their paths. */
function groupsOf(document) {
  const groups = new Map();
  for (const [path, operations] of Object.entries(document.paths)) {
    const [, first, second] = path.split("/");
    const group = first === "v1" ? second : /tokenize$/.test(first) ? "tokens" : "server";
    for (const method of METHODS.filter((one) => operations[one])) {
      const route = { method, path, operation: operations[method], id: slug(method, path) };
      groups.set(group, [...(groups.get(group) ?? []), route]);
    }
  }
  return groups;
}

/** What a search finds a route by: its path, its summary and the names of its body's fields. */
function wordsOf(document, { method, path, operation }) {
  const bodies = Object.values(operation.requestBody?.content ?? {}).map(({ schema }) => schema);
  const fields = bodies.flatMap((schema) => [...partsOf(document, schema).values()])
    .flatMap((schema) => Object.keys(schema.properties));
  return [method, path, operation.summary, operation.description, ...fields].join(" ").toLowerCase();
}

function Content({ document, content }) {
  return Object.entries(content).map(([media, { schema }]) => html`
    <p><code>${media}</code>${schema && html` <span class="type">${typeOf(document, schema)}</span>`}</p>
    ${schema && [...partsOf(document, schema)].map(([name, part]) => html`
      <${Fields} key=${name} document=${document} schema=${part} />`)}`);
}

function Responses({ document, responses }) {
  const shapes = new Map();
  for (const [status, { description, content }] of Object.entries(responses)) {
    const shape = JSON.stringify([description, content]);
    shapes.set(shape, { statuses: [...(shapes.get(shape)?.statuses ?? []), status], description, content });
  }
  return [...shapes.values()].map(({ statuses, description, content }) => {
    const title = html`<strong>${statuses.join(", ")}</strong> ${description}`;
    return content ? html`<${Lazy} title=${title}>
      ${() => html`<${Content} document=${document} content=${content} />`}
    <//>` : html`<p>${title}</p>`;
  });
}

function Details({ document, route: { method, path, operation } }) {
  const keys = "401" in operation.responses;
  return html`
    ${operation.description && html`<p>${operation.description}</p>`}
    ${operation.parameters && html`<h4>Parameters</h4>
      <${Fields} document=${document} schema=${{
        properties: Object.fromEntries(operation.parameters.map((one) => [one.name, { description: one.description, ...one.schema }])),
        required: operation.parameters.filter((one) => one.required).map((one) => one.name),
      }} />`}
    ${operation.requestBody && html`<h4>Request body</h4>
      <${Content} document=${document} content=${operation.requestBody.content} />`}
    <h4>Responses</h4>
    <${Responses} document=${document} responses=${operation.responses} />
    <h4>Example</h4>
    <pre tabindex="0" role="region" aria-label=${`Command for ${method.toUpperCase()} ${path}`}><code>${
      curlOf(method, path, operation, keys)}</code></pre>`;
}

/** A route, open where the address names it; its content is made when it is first opened. */
function Route({ document, route, named }) {
  const element = useRef(null);
  const [opened, setOpened] = useState(named);
  useEffect(() => {
    if (!named) return;
    setOpened(true);
    element.current.open = true;
    element.current.scrollIntoView();
  }, [named]);
  const toggled = (event) => {
    if (!event.currentTarget.open) return;
    setOpened(true);
    history.replaceState(null, "", `#${route.id}`);
  };
  return html`<details class="route" id=${route.id} ref=${element} onToggle=${toggled}>
    <summary>
      <h3><span class=${`method ${route.method}`}>${route.method.toUpperCase()}</span> <code>${route.path}</code></h3>
      <span class="quiet">${route.operation.summary}</span>
    </summary>
    ${opened && html`<${Details} document=${document} route=${route} />`}
  </details>`;
}

function Routes({ document }) {
  const [query, setQuery] = useState("");
  const [named, setNamed] = useState(location.hash.slice(1));
  useEffect(() => {
    const changed = () => setNamed(location.hash.slice(1));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const groups = useMemo(() => [...groupsOf(document)].map(([name, routes]) => [
    name, routes.map((route) => ({ ...route, words: wordsOf(document, route) })),
  ]), [document]);
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = groups
    .map(([name, routes]) => [name, routes.filter((one) => wanted.every((word) => one.words.includes(word)))])
    .filter(([, routes]) => routes.length > 0);
  const count = found.reduce((sum, [, routes]) => sum + routes.length, 0);
  return html`
    <p class="search">
      <label for="search">Search routes and fields</label>
      <input id="search" type="search" value=${query} onInput=${(event) => setQuery(event.target.value)} />
      <span class="quiet" role="status">${count} routes</span>
    </p>
    ${found.map(([name, routes]) => html`<section key=${name} aria-labelledby=${`group-${name}`}>
      <h2 id=${`group-${name}`}>${name}</h2>
      ${routes.map((route) => html`<${Route} key=${route.id} document=${document} route=${route}
        named=${route.id === named} />`)}
    </section>`)}`;
}

function App() {
  const [document, setDocument] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const load = () => json("openapi.json").then(
    (found) => { setDocument(found); setTrouble(null); },
    (error) => setTrouble(error.message),
  );
  useEffect(() => { load(); }, []);
  return html`
    <${Header} current="docs" state=${document && `${document.info.title} ${document.info.version}`} />
    ${trouble && html`<p class="notice bad" role="alert">${trouble} <button onClick=${load}>Try again</button></p>`}
    <main>${document && html`<${Routes} document=${document} />`}</main>
    <${KeyDialog} />`;
}

render(html`<${App} />`, document.getElementById("app"));
