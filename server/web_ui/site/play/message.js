// One message: its text, what is known of how it was made, and what can be done with it.

import { Component, html, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../vendor/preact.js";
import { onLibrary } from "./library.js";
import { copyCode, toFragment } from "./markdown.js";
import { Code, copy } from "./sent.js";
import { Tokens } from "./tokens.js";
import { Chip } from "./chip.js";
import { wholeText } from "./exchange.js";
import { store } from "./store.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };
const STATES = { stopped: "stopped", cut: "cut off", failed: "failed" };

/** Puts the fragment's nodes into the box. Those at its beginning that are the same stay, with what is selected there. */
function replaced(box, fragment) {
  const nodes = [...fragment.childNodes];
  let same = 0;
  while (same < nodes.length && box.childNodes[same]?.isEqualNode(nodes[same])) same += 1;
  while (box.childNodes.length > same) box.lastChild.remove();
  box.append(...nodes.slice(same));
}

/** Markdown that is made again at most as often as it can be: not before four times as long as it took has passed. */
function Markdown({ text, live }) {
  const box = useRef(null);
  const made = useRef({ text: null, cost: 0, at: -Infinity });
  const [, again] = useReducer((count) => count + 1, 0);
  // Before the effect that draws, and so asks for libraries: one may come sooner than the effects after a frame.
  useLayoutEffect(() => onLibrary(() => {
    made.current.text = null;
    again();
  }), []);
  useLayoutEffect(() => {
    if (made.current.text === text) return undefined;
    const began = performance.now();
    const wait = live ? made.current.at + 4 * made.current.cost - began : 0;
    if (wait > 0) {
      const timer = setTimeout(again, wait);
      return () => clearTimeout(timer);
    }
    replaced(box.current, toFragment(text));
    const ended = performance.now();
    made.current = { text, cost: ended - began, at: ended };
    return undefined;
  });
  const clicked = (event) => {
    const found = copyCode(event);
    if (found) copy(found.code, found.button);
  };
  return html`<div class="markdown" ref=${box} onClick=${clicked}></div>`;
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

/** Switches between the versions of a message. */
function Versions({ branches: { at, tails }, index, busy }) {
  const to = (by, name, label) => html`<button class="small" aria-label=${label} disabled=${busy || !(at + by in tails)}
    onClick=${() => store.version(index, at + by)}>${name}</button>`;
  return html`<span class="versions" role="group" aria-label="Versions">
    ${to(-1, "‹", "Previous version")} <span role="status">${at + 1}/${tails.length}</span> ${to(1, "›", "Next version")}</span>`;
}

function Calls({ calls }) {
  return calls.map((call) => html`<div class="call" key=${call.id}>
    <p class="quiet">calls <code>${call.function.name}</code></p>
    <pre tabindex="0">${call.function.arguments}</pre></div>`);
}

const seconds = (milliseconds) => `${(milliseconds / 1000).toFixed(milliseconds < 10000 ? 2 : 1)} s`;

const rate = (tokens, milliseconds) => Number((1000 * tokens / milliseconds).toPrecision(3));

function factsOf({ state, finish, usage, firstAfter, took }) {
  const facts = [];
  if (state in STATES) facts.push(STATES[state]);
  if (finish && finish !== "stop") facts.push({ length: "stopped at max tokens", tool_calls: "calls a tool" }[finish] ?? finish);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    facts.push(`${usage.prompt_tokens} prompt tokens${cached ? ` (${cached} cached)` : ""}, ${usage.completion_tokens} generated`);
  }
  if (firstAfter !== undefined) facts.push(`TTFT ${seconds(firstAfter)}`);
  // The first token is not part of the rate: its time is that of the prompt.
  if (usage?.completion_tokens > 1 && took > firstAfter) facts.push(`${rate(usage.completion_tokens - 1, took - firstAfter)} tokens/s`);
  if (took !== undefined) facts.push(`${seconds(took)} total`);
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
      ${id && html` <a href=${`#live/${id}`}>Timeline</a>`}</p>
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
  const { content, answer } = message;
  const goOn = () => {
    const before = store.chat.messages[index - 1];
    store.draft((before ? wholeText(before, mode) : "") + content);
  };
  const button = (name, act) => html`<button class="small" disabled=${busy} onClick=${act}>${name}</button>`;
  return html`<span class="actions" role="group" aria-label="Actions">
    ${answer && button("Regenerate", () => store.regenerate(index))}
    ${sent && answer && button("Check determinism", () => store.again(index))}
    ${answer && mode === "completion" && button("Continue", goOn)}
    <button class="small" onClick=${(event) => copy(wholeText(message, mode), event.target)}>Copy</button>
    ${button("Edit", onEdit)}
    ${button("Delete", () => store.delete(index))}
  </span>`;
}

function Shown(props) {
  const { message, mode, live, sent } = props;
  const { role, content, files, answer, branches, tool_calls: calls } = message;
  const [chosen, setView] = useState(null);
  const [editing, setEditing] = useState(false);
  const views = useMemo(() => ["text", "raw", ...(answer?.tokens ? ["tokens"] : [])], [Boolean(answer?.tokens)]);
  const usual = answer?.tokens ? "tokens" : role === "assistant" && mode === "chat" ? "text" : "raw";
  const view = views.includes(chosen) ? chosen : usual;
  return html`<article class=${`message ${role}`} aria-label=${NAMES[role]} aria-busy=${String(live)}>
    <div class="head"><h3>${NAMES[role]}</h3>
      ${branches?.tails.length > 1 && html`<${Versions} branches=${branches} index=${props.index} busy=${props.busy} />`}
      ${content && role === "assistant" && html`<${Views} view=${view} views=${views} onView=${setView} />`}</div>
    ${files && html`<div class="row">${files.map((file, i) => html`<${Chip} key=${i} file=${file} />`)}</div>`}
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
