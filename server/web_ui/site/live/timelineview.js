// The recent requests, and the timeline of the one that is chosen.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { clock, count, plural, seconds } from "./format.js";
import { called, doing } from "./requests.js";
import { PHASES, phases, why } from "./timeline.js";

const MOST_ROWS = 50;
const COLUMNS = ["Request", "Queued", "State", "Prompt", "First token", "Duration"];

const nameOf = ({ id, number }) => id ?? `${number}`;
const brief = (name) => (name.length > 20 ? `${name.slice(0, 16)}…` : name);
const hashName = () => decodeURIComponent(location.hash.split("/").slice(1).join("/")) || null;

/** The name in `#live/NAME`, and a function that changes it. */
function useNamed() {
  const [name, setName] = useState(hashName);
  useEffect(() => {
    const changed = () => setName(hashName());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const choose = (next) => {
    history.replaceState(null, "", next === null ? "#live" : `#live/${encodeURIComponent(next)}`);
    setName(next);
  };
  return [name, choose];
}

const details = {
  restore: ({ tokens }) => plural(tokens, "token"),
  prompt: ({ tokens, chunks }) => (chunks ? `${plural(tokens, "token")} in ${plural(chunks, "chunk")}` : ""),
  again: ({ tokens, chunks }) => `${plural(tokens, "token")} in ${plural(chunks, "chunk")}`,
};

/** The longest of the steps that ran between `from` and `to`. */
const longestStep = (steps, from, to) =>
  steps.reduce((best, step) => (step.time >= from && step.time <= to && step.seconds > (best?.seconds ?? 0) ? step : best), null);

function Facts({ request }) {
  const first = request.visits[0];
  const facts = [
    ["Class", request.className], ["Prompt", request.promptTokens === null ? null : plural(request.promptTokens, "token")],
    ["Found in the cache", first?.cached == null ? null : plural(first.cached, "token")],
    ["From host memory", first?.host ? plural(first.host, "token") : null],
    ["Generated", request.generated === null ? null : plural(request.generated, "token")],
    ["Ended", request.reason],
  ];
  return html`<dl class="facts numbers">${facts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => html`
    <div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A row of the timeline: a phase, its bar, when it began and how long it was. */
function Phase({ phase, from, whole }) {
  const place = (time) => `${(100 * (time - from)) / whole}%`;
  return html`<tr>
    <th scope="row">${PHASES[phase.kind]}${details[phase.kind] && html` <small>${details[phase.kind](phase)}</small>`}</th>
    <td class="track" aria-hidden="true">
      <span class=${`phase ${phase.kind}`} style=${{ left: place(phase.from), width: place(from + phase.to - phase.from) }}></span>
      ${phase.ends?.map((time, at) => html`<span key=${at} class="phase-mark" style=${{ left: place(time) }}></span>`)}
    </td>
    <td>+${seconds(phase.from - from)}</td><td>${seconds(phase.to - phase.from)}</td>
  </tr>`;
}

function Timeline({ request, now, steps, onClose }) {
  const found = phases(request, now);
  const from = found[0]?.from ?? 0;
  const to = found.at(-1)?.to ?? from;
  const slow = longestStep(steps, from, to);
  return html`<article class="request" aria-label=${`Request ${nameOf(request)}`}>
    <div class="row"><h3>${nameOf(request)}</h3><button onClick=${onClose}>Close</button></div>
    <p class="why">${why(request, now)}${request.queued === null ? " The server no longer knows what came before." : ""}</p>
    ${slow && html`<p class="quiet small">The longest step in this time took ${seconds(slow.seconds)}${" "}
      (step ${count(slow.number)}, ${plural(slow.decodes, "decode")} and ${plural(slow.prompt, "prompt token")}).</p>`}
    <${Facts} request=${request} />
    ${found.length > 0 && html`<table class="timeline numbers">
      <thead><tr><th scope="col">Phase</th><td class="track"></td><th scope="col">Start</th><th scope="col">Duration</th></tr></thead>
      <tbody>${found.map((phase, at) => html`<${Phase} key=${at} phase=${phase} from=${from} whole=${Math.max(to - from, 1e-9)} />`)}</tbody>
    </table>`}
  </article>`;
}

function Row({ request, now, chosen, onChoose }) {
  const found = phases(request, now);
  const lasted = found.length ? found.at(-1).to - found[0].from : null;
  const first = request.first !== null && request.queued !== null ? request.first - request.queued : null;
  return html`<tr class=${chosen ? "chosen" : ""}>
    <th scope="row">
      <button class="link" aria-pressed=${chosen} title=${nameOf(request)} onClick=${onChoose}>${brief(nameOf(request))}</button>
      ${request.id && html`<small> ${request.number}</small>`}
    </th>
    <td>${request.queued === null ? "–" : clock(request.queued)}</td>
    <td>${doing(request)}${request.reason && html`<small> ${request.reason}</small>`}</td>
    <td>${count(request.promptTokens)}</td><td>${seconds(first)}</td><td>${seconds(lasted)}</td>
  </tr>`;
}

/** The newest of `listed`, in an order that stands still while a pointer or the focus is `over` them. */
function useStill(listed) {
  const [over, setOver] = useState({ pointer: false, focus: false });
  const numbers = useRef([]);
  if (!over.pointer && !over.focus) numbers.current = listed.slice(0, MOST_ROWS).map(({ number }) => number);
  const is = (what, value) => () => setOver((before) => ({ ...before, [what]: value }));
  const by = new Map(listed.map((one) => [one.number, one]));
  return [numbers.current.flatMap((number) => by.get(number) ?? []), {
    onPointerEnter: is("pointer", true), onPointerLeave: is("pointer", false), onFocusIn: is("focus", true), onFocusOut: is("focus", false),
  }];
}

export function Requests({ state: { requests, steps, now }, read }) {
  const [name, choose] = useNamed();
  const [own, setOwn] = useState(false);
  const time = Math.max(now?.time ?? 0, steps.at(-1)?.time ?? 0);
  const chosen = name === null ? null : called(requests, name);
  const listed = [...requests.values()].filter((one) => !own || one.id !== null).sort((one, next) => next.number - one.number);
  // Of an answer with several choices the id means the first.
  const addressOf = (one) => (called(requests, nameOf(one)) === one ? nameOf(one) : `${one.number}`);
  const [rows, still] = useStill(listed);
  return html`<section class="card wide" aria-labelledby="timelines-title">
    <div class="row"><h2 id="timelines-title">Request timelines</h2>
      <label><input type="checkbox" checked=${own} onChange=${(event) => setOwn(event.target.checked)} /> Only mine</label></div>
    ${name !== null && !chosen && read && html`<p role="status">
      Request ${name} is not known: the server remembers only the last requests. <button onClick=${() => choose(null)}>Close</button></p>`}
    ${chosen && html`<${Timeline} request=${chosen} now=${time} steps=${steps} onClose=${() => choose(null)} />`}
    ${listed.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Recent requests" ...${still}><table class="numbers">
      <thead><tr>${COLUMNS.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
      <tbody>${rows.map((one) => html`<${Row} key=${one.number} request=${one} now=${time} chosen=${one === chosen}
        onChoose=${() => choose(one === chosen ? null : addressOf(one))} />`)}</tbody>
    </table></div>`}
    ${!listed.length && html`<p class="quiet">
      ${own ? "None of yours yet. Requests of the playground are listed here." : "No request yet."}</p>`}
    ${listed.length > MOST_ROWS && html`<p class="quiet small">The newest ${MOST_ROWS} of ${count(listed.length)}.</p>`}
  </section>`;
}
