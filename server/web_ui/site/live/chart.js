// A small chart of lines over time, drawn as SVG in the page's colours.

import { html, useMemo, useRef } from "../vendor/preact.js";
import { useWidth } from "./canvas.js";
import { clock } from "./format.js";

const HEIGHT = 118;
const FOOT = 18;
const TOP = 16; // for the label of the axis

/** The next round number from `most`: 1, 2, 2.5 or 5 times a power of ten. */
export function roundUp(most) {
  if (!(most > 0)) return 1;
  const decade = 10 ** Math.floor(Math.log10(most));
  return decade * [1, 2, 2.5, 5, 10].find((factor) => factor * decade >= most * (1 - 1e-9));
}

/** An SVG path through `values` (null: a gap), whose points are `x(index)`, `y(value)`. A lone point is a short dash. */
export function path(values, x, y) {
  let found = "";
  values.forEach((value, at) => {
    if (value === null || value === undefined) return;
    const alone = values[at - 1] == null;
    found += `${alone ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    if (alone && values[at + 1] == null) found += "h1.5";
  });
  return found;
}

/** Round times between `from` and `to` (seconds of the clock) for an axis with room for `most`. */
export function times(from, to, most) {
  const every = [10, 30, 60, 120, 300, 600, 900, 1200, 1800].find((gap) => (to - from) / gap <= most) ?? 3600;
  const found = [];
  for (let time = Math.ceil(from / every) * every; time <= to; time += every) found.push(time);
  return found;
}

/** `at`: the index of the sample that is marked, or null; `onAt(index or null)`: the pointer is over it. */
export function Chart({ title, write, lines, samples, every, at, onAt }) {
  const box = useRef(null);
  const width = useWidth(box);
  const [from, to] = [samples[0].time, samples.at(-1).time];
  const x = (index) => ((samples[index].time - from) / Math.max(to - from, 1e-9)) * (width - 2) + 1;
  const [values, high] = useMemo(() => {
    const found = lines.map(([, value]) => samples.map((one) => value(one, every)));
    return [found, roundUp(Math.max(0, ...found.flat().filter((value) => value !== null)))];
  }, [samples]);
  const y = (value) => TOP + (HEIGHT - TOP) * (1 - value / high);
  const drawn = useMemo(() => values.map((one) => path(one, x, y)), [samples, width]);
  const move = (event) => {
    const time = from + (event.offsetX / width) * (to - from);
    onAt(samples.reduce((best, one, index) => (Math.abs(one.time - time) < Math.abs(samples[best].time - time) ? index : best), 0));
  };
  const shown = at ?? samples.length - 1;
  return html`<figure ref=${box}>
    <figcaption>${title} <span class="quiet small">${at === null ? "now" : `at ${clock(samples[at].time)}`}</span></figcaption>
    <svg width=${width} height=${HEIGHT + FOOT} aria-hidden="true" onPointerMove=${move} onPointerDown=${move} onPointerLeave=${() => onAt(null)}>
      <line class="axis" x1="0" x2=${width} y1=${HEIGHT + 0.5} y2=${HEIGHT + 0.5} />
      <line class="axis faint" x1="0" x2=${width} y1=${TOP + 0.5} y2=${TOP + 0.5} />
      ${times(from, to, width / 70).map((time) => {
        const place = ((time - from) / (to - from)) * width;
        const inside = place > 18 && place < width - 18;
        const label = clock(time).slice(0, to - from < 300 ? 8 : 5);
        return inside && html`<text key=${time} x=${place} y=${HEIGHT + 14} text-anchor="middle">${label}</text>`;
      })}
      <text x="0" y=${TOP - 4}>${write(high)}</text>
      ${drawn.map((line, index) => html`<path key=${index} class=${`line line${index}`} d=${line} />`)}
      ${at !== null && html`<line class="cursor" x1=${x(at)} x2=${x(at)} y1=${TOP} y2=${HEIGHT} />`}
      ${at !== null && values.map((one, index) => one[at] !== null && html`
        <circle key=${index} class=${`mark line${index}`} cx=${x(at)} cy=${y(one[at])} r="3" />`)}
    </svg>
    <ul class="legend numbers">
      ${lines.map(([label], index) => html`<li key=${label}>
        <svg width="22" height="8" aria-hidden="true"><path class=${`line line${index}`} d="M0 4H22" /></svg>
        <span>${label} <b>${write(values[index][shown])}</b></span></li>`)}
    </ul>
  </figure>`;
}
