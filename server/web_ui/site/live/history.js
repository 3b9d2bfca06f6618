// The last hour, as the server kept it: small charts over one axis of time, and a table of the same numbers.

import { html, useEffect, useState } from "../vendor/preact.js";
import { json } from "../api.js";
import { Chart } from "./chart.js";
import { clock, count, percent, seconds, short } from "./format.js";

const share = (part, whole) => (whole > 0 ? part / whole : null);

const PADDING = "Padding";

/** The charts: title, how a value is written, and lines `[label, value of a sample]`. */
export const CHARTS = [
  { title: "Tokens per second", write: short, lines: [
    ["generated", (one, every) => one.generated_tokens / every], ["prompts", (one, every) => one.prompt_tokens / every]] },
  { title: "Requests", write: count, lines: [["running", (one) => one.running], ["waiting", (one) => one.waiting]] },
  { title: "Cache blocks", write: count, lines: [
    ["used", (one) => one.used], ["cached", (one) => one.cached], ["free", (one) => one.free], ["host", (one) => one.host]] },
  { title: "Time to first token", write: seconds, lines: [["P50", (one) => one.ttft_p50], ["P95", (one) => one.ttft_p95]] },
  { title: "Time between tokens", write: seconds, lines: [["P50", (one) => one.gap_p50], ["P95", (one) => one.gap_p95]] },
  { title: PADDING, write: percent, lines: [["of computed tokens", (one) => share(one.padded_tokens, one.step_tokens)]] },
];

/** The samples of `/steps/history` as objects. */
export const samplesOf = ({ fields, samples }) =>
  samples.map((values) => Object.fromEntries(fields.map((field, at) => [field, values[at]])));

/** What the server keeps, read again at each of its intervals while `active`. */
function useHistory(active) {
  const [history, setHistory] = useState(null);
  const [trouble, setTrouble] = useState(null);
  useEffect(() => {
    if (!active) return undefined;
    const stop = new AbortController();
    let timer;
    const read = async () => {
      let every = 10;
      try {
        const found = await json("steps/history", { signal: stop.signal });
        every = found.interval_seconds;
        setHistory({ every, samples: samplesOf(found) });
        setTrouble(null);
      } catch (error) {
        if (!stop.signal.aborted) setTrouble(error.message);
      }
      if (!stop.signal.aborted) timer = setTimeout(read, every * 1000);
    };
    read();
    return () => { stop.abort(); clearTimeout(timer); };
  }, [active]);
  return [history, trouble];
}

/** The newest first; a row for each minute. */
function Table({ charts, samples, every }) {
  const step = Math.max(1, Math.round(60 / every));
  const rows = samples.filter((_, at) => (samples.length - 1 - at) % step === 0).reverse();
  return html`<div class="scroll" tabindex="0" role="region" aria-label="The last hour as a table"><table class="numbers">
    <thead>
      <tr><td></td>${charts.map(({ title, lines }) => html`<th scope="colgroup" colspan=${lines.length}>${title}</th>`)}</tr>
      <tr><th scope="col">Time</th>${charts.flatMap(({ lines }) => lines.map(([label]) => html`<th scope="col">${label}</th>`))}</tr>
    </thead>
    <tbody>${rows.map((one) => html`<tr key=${one.time}><th scope="row">${clock(one.time)}</th>
      ${charts.flatMap(({ write, lines }) => lines.map(([, value]) => html`<td>${write(value(one, every))}</td>`))}</tr>`)}</tbody>
  </table></div>`;
}

function Charts({ charts, samples, every }) {
  const [at, setAt] = useState(null);
  const [open, setOpen] = useState(false);
  const marked = at === null ? null : Math.min(at, samples.length - 1);
  return html`
    <div class="charts">
      ${charts.map((chart) => html`
        <${Chart} key=${chart.title} ...${chart} samples=${samples} every=${every} at=${marked} onAt=${setAt} />`)}
    </div>
    <p class="row"><label for="history-time">Time</label>
      <input id="history-time" class="grow" type="range" min="0" max=${samples.length - 1} value=${marked ?? samples.length - 1}
        aria-valuetext=${clock(samples[marked ?? samples.length - 1].time)} onInput=${(event) => setAt(Number(event.target.value))} /></p>
    <details onToggle=${(event) => setOpen(event.target.open)}>
      <summary>As a table</summary>
      ${open && html`<${Table} charts=${charts} samples=${samples} every=${every} />`}
    </details>`;
}

/** `hello`: what the feed says of the engine. */
export function History({ active, hello }) {
  const [history, trouble] = useHistory(active);
  const charts = hello.skips_padding ? CHARTS.filter(({ title }) => title !== PADDING) : CHARTS;
  const enough = history && history.samples.length > 1;
  return html`<section class="card wide" aria-labelledby="history-title">
    <h2 id="history-title">The last hour</h2>
    ${trouble && html`<p class="bad">${trouble}</p>`}
    ${enough && html`
      <p class="quiet small">${count(history.samples.length)} samples that the server took, one every ${seconds(history.every)}.</p>
      <${Charts} charts=${charts} ...${history} />`}
    ${!enough && !trouble && html`<p class="quiet">
      The server takes a sample every ${seconds(history?.every ?? 10)}; charts begin with the second.</p>`}
  </section>`;
}
