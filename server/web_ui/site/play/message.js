// One message: its text, what is known of how it was made, and what can be done with it.

import { Component, html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { toHtml } from "./markdown.js";
import { Code, copy } from "./sent.js";
import { Tokens } from "./tokens.js";
import { store } from "./store.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };
const STATES = { stopped: "stopped", cut: "cut off", failed: "failed" };

/** Markdown that is made again at most as often as it can be: not before four times as long as it took has passed. */
function Markdown({ text, live }) {
  const made = useRef({ text: null, html: "", cost: 0, at: -Infinity });
  const [, again] = useState(0);
  const wait = live ? made.current.at + 4 * made.current.cost - performance.now() : 0;
  if (made.current.text !== text && wait <= 0) {
    const began = performance.now();
    const found = toHtml(text);
    const ended = performance.now();
    made.current = { text, html: found, cost: ended - began, at: ended };
  }
  useEffect(() => {
    if (wait <= 0) return undefined;
    const timer = setTimeout(() => again((count) => count + 1), wait);
    return () => clearTimeout(timer);
  });
  return html`<div class="markdown" dangerouslySetInnerHTML=${{ __html: made.current.html }}></div>`;
}

const VIEWS = { text: "Text", raw: "Raw", tokens: "Tokens" };

function Views({ view, views, onView }) {
  return html`<span class="views" role="group" aria-label="Shown as">
    ${views.map((one) => html`<button key=${one} class="small" aria-pressed=${String(one === view)} onClick=${() => onView(one)}>
      ${VIEWS[one]}</button>`)}</span>`;
}

function Body({ message, view, live }) {
  if (view === "tokens") return html`<${Tokens} tokens=${message.answer.tokens} live=${live} />`;
  if (view === "raw") return html`<pre class="raw" tabindex="0">${message.content}</pre>`;
  return html`<${Markdown} text=${message.content} live=${live} />`;
}

function Calls({ calls }) {
  return calls.map((call) => html`<div class="call" key=${call.id}>
    <p class="quiet">calls <code>${call.function.name}</code></p>
    <pre tabindex="0">${call.function.arguments}</pre></div>`);
}

const seconds = (milliseconds) => `${(milliseconds / 1000).toFixed(milliseconds < 10000 ? 2 : 1)} s`;

function factsOf({ state, finish, usage, firstAfter, took }) {
  const facts = [];
  if (state in STATES) facts.push(STATES[state]);
  if (finish && finish !== "stop") facts.push({ length: "ended at its limit of tokens", tool_calls: "calls a tool" }[finish] ?? finish);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    facts.push(`${usage.prompt_tokens} prompt tokens${cached ? ` (${cached} cached)` : ""}, ${usage.completion_tokens} generated`);
  }
  if (firstAfter !== undefined) facts.push(`first after ${seconds(firstAfter)}`);
  if (took !== undefined) facts.push(`${seconds(took)} in all`);
  return facts;
}

const shownValue = (name, value) =>
  name.endsWith("seconds") ? seconds(value * 1000) : name.endsWith("share") ? `${Math.round(value * 100)} %` : `${value}`;

function Facts({ answer, live }) {
  if (live) return html`<p class="facts quiet">Answering …</p>`;
  const { state, latency, id, error, again } = answer;
  const unfinished = state === "streaming" ? "Unfinished: another tab is at it, or this page was closed." : null;
  return html`
    ${(error ?? unfinished) && html`<p class="bad">${error ?? unfinished}</p>`}
    <p class="facts quiet">${factsOf(answer).join(" · ")}
      ${id && html` <a href=${`#live/${id}`}>its way through the engine</a>`}</p>
    ${latency && html`<dl class="latency quiet">${Object.entries(latency).map(([name, value]) => html`
      <div key=${name}><dt>${name.replace(/_seconds$/, "").replaceAll("_", " ")}</dt><dd>${shownValue(name, value)}</dd></div>`)}</dl>`}
    ${again && html`<p class=${`again ${again.same === null ? "quiet" : again.same ? "good" : "bad"}`}>
      ${again.same === null ? "" : again.same ? "✓ " : "≠ "}${again.words}</p>`}`;
}

function Editor({ message, index, onEnd }) {
  const area = useRef(null);
  useEffect(() => { area.current.focus(); }, []);
  const keep = (resend) => { if (store.edit(index, area.current.value, resend)) onEnd(); };
  return html`<form class="editor" onSubmit=${(event) => { event.preventDefault(); keep(false); }}
      onKeyDown=${(event) => { if (event.key === "Escape") { event.stopPropagation(); onEnd(); } }}>
    <textarea ref=${area} rows="5" aria-label="Edited text">${message.content}</textarea>
    <div class="row">
      <button class="small">Keep</button>
      ${message.role === "user" && html`<button type="button" class="small" onClick=${() => keep(true)}>Send from here</button>`}
      <button type="button" class="small" onClick=${onEnd}>Cancel</button>
    </div>
  </form>`;
}

function Actions({ message, index, mode, busy, sent, onEdit }) {
  const { role, content, answer } = message;
  const before = store.chat.messages[index - 1];
  const button = (name, act) => html`<button class="small" disabled=${busy} onClick=${act}>${name}</button>`;
  return html`<span class="actions" role="group" aria-label="Actions">
    ${answer && button("Regenerate", () => store.regenerate(index))}
    ${sent && answer && button("Again", () => store.again(index))}
    ${answer && mode === "completion" && button("Continue", () => store.draft((before?.content ?? "") + content))}
    <button class="small" onClick=${(event) => copy(content, event.target)}>Copy</button>
    ${button("Edit", onEdit)}
    ${button("Delete", () => store.delete(index))}
  </span>`;
}

function Shown(props) {
  const { message, mode, live, sent } = props;
  const { role, content, answer, tool_calls: calls } = message;
  const [chosen, setView] = useState(null);
  const [editing, setEditing] = useState(false);
  const views = useMemo(() => ["text", "raw", ...(answer?.tokens ? ["tokens"] : [])], [Boolean(answer?.tokens)]);
  const usual = answer?.tokens ? "tokens" : role === "assistant" && mode === "chat" ? "text" : "raw";
  const view = views.includes(chosen) ? chosen : usual;
  return html`<article class=${`message ${role}`} aria-label=${NAMES[role]} aria-busy=${String(live)}>
    <div class="head"><h3>${NAMES[role]}</h3>
      ${content && role === "assistant" && html`<${Views} view=${view} views=${views} onView=${setView} />`}</div>
    ${editing
      ? html`<${Editor} message=${message} index=${props.index} onEnd=${() => setEditing(false)} />`
      : content && html`<${Body} message=${message} view=${view} live=${live} />`}
    ${calls && html`<${Calls} calls=${calls} />`}
    ${answer && html`<${Facts} answer=${answer} live=${live} />`}
    ${!live && html`<${Actions} ...${props} onEdit=${() => setEditing(true)} />`}
    ${sent && answer && html`<${Code} sent=${sent} />`}
  </article>`;
}

/** A message is drawn again only where something of it has changed: conversations are long. */
export class Message extends Component {
  shouldComponentUpdate(next) {
    return next.live || Object.keys(next).some((name) => next[name] !== this.props[name]);
  }

  render(props) { return html`<${Shown} ...${props} />`; }
}
