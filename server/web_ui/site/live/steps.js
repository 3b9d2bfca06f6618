// The steps: bars that come in at the right, which can be held still, and the numbers of one of them.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { useColours, useWidth } from "./canvas.js";
import { clock, count, percent, plural, seconds } from "./format.js";
import { COLOURS, draw, fitting, HEIGHT, padding, stepAt, visible } from "./stepchart.js";

/** A step's numbers in words. `skips`: the kernels leave padding out. */
export const words = (step, skips) =>
  `Step ${count(step.number)} at ${clock(step.time)}: ${plural(step.decodes, "decode")}, ${plural(step.prompt, "prompt token")}` +
  `${skips ? "" : `, ${count(padding(step))} padding of ${plural(step.width, "token")}`}; ${seconds(step.seconds)}` +
  `${step.predicted > 0 ? `, predicted ${seconds(step.predicted)}` : ""}; ${count(step.running)} running, ${count(step.waiting)} waiting; ` +
  `${count(step.free)} blocks free, ${count(step.cached)} cached${step.host ? `, ${count(step.host)} in host memory` : ""}`;

/** The sums of the steps that are in view. */
function summary(shown, skips) {
  const sum = (of) => shown.reduce((total, step) => total + of(step), 0);
  const ratios = shown.filter((step) => step.predicted > 0).map((step) => step.seconds / step.predicted).sort((a, b) => a - b);
  const parts = [[sum((step) => step.decodes), "decodes"], [sum((step) => step.prompt), "prompts"]];
  if (!skips) parts.push([sum((step) => padding(step)), "padding"]);
  const tokens = parts.reduce((total, [part]) => total + part, 0);
  return `${plural(shown.length, "step")} in view: ${parts.map(([part, name]) => `${percent(part / tokens)} ${name}`).join(", ")}` +
    (ratios.length ? `; the median step took ${percent(ratios[Math.floor(ratios.length / 2)])} of its predicted time` : "") + ".";
}

const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, Home: -Infinity, End: Infinity };

/** Which steps are shown and which is chosen: the newest, or those of `held` (what was there when the view was held). */
function useHold(steps, room) {
  const [held, setHeld] = useState(null);
  const [chosen, setChosen] = useState(null); // a step's number
  const [end, setEnd] = useState(null); // index after the newest in view, while held
  const all = held ?? steps;
  const hold = () => { if (!held) { setHeld(steps); setEnd(steps.length); } };
  const go = () => { setHeld(null); setEnd(null); setChosen(null); };
  const scroll = (by) => {
    hold();
    setEnd((before) => Math.min(all.length, Math.max(Math.min(room, all.length), (before ?? all.length) + by)));
  };
  const choose = (at) => {
    hold();
    const index = Math.min(Math.max(at, 0), all.length - 1);
    setChosen(all[index]?.number ?? null);
    const last = held ? end : all.length;
    if (index >= last) setEnd(index + 1);
    else if (index < last - room) setEnd(Math.max(index + room, 1));
  };
  return { all, held: held !== null, end: held ? end : all.length, chosen, setChosen, hold, go, scroll, choose };
}

function Legend({ limit, skips }) {
  return html`<ul class="legend">
    <li><span class="swatch decodes"></span>Decode tokens</li>
    <li><span class="swatch prompts"></span>Prompt tokens</li>
    ${!skips && html`<li><span class="swatch padding"></span>Padding</li>`}
    <li><span class="swatch dot"></span>Step time</li>
    <li><span class="swatch dash"></span>Predicted step time</li>
    ${limit > 0 && html`<li><span class="swatch limit"></span>Predicted P99: ${seconds(limit)}</li>`}
  </ul>`;
}

export function Steps({ state }) {
  const { steps, hello, now } = state;
  const box = useRef(null);
  const canvas = useRef(null);
  const width = useWidth(box);
  const colours = useColours(COLOURS);
  const view = useHold(steps, fitting(width));
  const shown = width ? visible(view.all, width, view.end) : [];
  const limit = now?.longest_step_seconds;
  const skips = hello.skips_padding === true;
  useEffect(() => {
    if (width) draw(canvas.current, { shown, width, budget: hello.token_budget, limit, skips, colours, chosen: view.chosen });
  });
  const at = view.all.findIndex((step) => step.number === view.chosen);
  const step = view.all[at] ?? shown.at(-1);
  const under = (event) => {
    const found = stepAt(shown, width, event.offsetX);
    return found === null ? null : view.all.indexOf(shown[found]);
  };
  const hover = (event) => { if (event.pointerType === "mouse") view.setChosen(view.all[under(event) ?? -1]?.number ?? null); };
  const press = (event) => { const found = under(event); if (found !== null) view.choose(found); };
  const keys = (event) => {
    const by = event.key === "PageUp" || event.key === "PageDown" ? fitting(width) * (event.key === "PageUp" ? 1 : -1) : MOVES[event.key];
    if (by !== undefined) view.choose((at < 0 ? view.end - 1 : at) + by);
    else if (event.key === " ") (view.held ? view.go : view.hold)();
    else if (event.key === "Escape") view.go();
    else return;
    event.preventDefault();
  };
  return html`<section class="card wide steps" aria-labelledby="steps-title">
    <div class="row">
      <h2 id="steps-title">Steps</h2>
      <span class="buttons">
        <button onClick=${() => view.scroll(-fitting(width))} aria-label="Older steps">‹</button>
        <button onClick=${() => view.scroll(fitting(width))} aria-label="Newer steps" disabled=${!view.held}>›</button>
        <button onClick=${view.held ? view.go : view.hold} aria-pressed=${view.held}>${view.held ? "Resume" : "Pause"}</button>
      </span>
    </div>
    <${Legend} limit=${limit} skips=${skips} />
    <div ref=${box} class="bars" role="slider" tabindex="0" aria-label="Steps" aria-valuemin=${view.all[0]?.number ?? 0}
      aria-valuemax=${view.all.at(-1)?.number ?? 0} aria-valuenow=${step?.number ?? 0}
      aria-valuetext=${at < 0 ? "the newest" : words(step, skips)} aria-describedby="steps-keys"
      onKeyDown=${keys} onPointerMove=${hover} onPointerLeave=${() => view.held || view.setChosen(null)} onPointerDown=${press}>
      <canvas ref=${canvas} aria-hidden="true" style=${{ width: "100%", height: `${HEIGHT}px` }}></canvas>
    </div>
    <p class="numbers readout">${step ? words(step, skips) : "No step yet: the server has had no request."}</p>
    <p class="quiet small">${shown.length > 0 && summary(shown, skips)}${" "}
      <span id="steps-keys">Arrow keys select a step, Space pauses, Escape resumes.</span></p>
  </section>`;
}
