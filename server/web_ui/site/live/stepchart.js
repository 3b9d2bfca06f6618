// Draws steps: each a bar of its token budget, and below it its time against the prediction.

import { context } from "./canvas.js";
import { seconds, short } from "./format.js";

export const COLOURS = ["decodes", "prompts", "padding", "text", "quiet", "line", "accent", "bad", "ground"];
const BAR = 5; // pixels of a step, the gap of one pixel included
const LEFT = 46; // for the axes' labels
const TOP = 8;
const BARS = 120;
const BETWEEN = 26;
const TIMES = 84;
export const HEIGHT = TOP + BARS + BETWEEN + TIMES + 8;

/** How many steps fit in `width`. */
export const fitting = (width) => Math.max(1, Math.floor((width - LEFT) / BAR));

/** The steps of `steps` that are shown: the newest that fit, or the ones that end at `end` (an index, exclusive). */
export const visible = (steps, width, end = steps.length) => steps.slice(Math.max(0, end - fitting(width)), end);

/** The index in `shown` of the step at `x`, or null left of the first. */
export function stepAt(shown, width, x) {
  const at = shown.length - 1 - Math.floor((width - x) / BAR);
  return at < 0 || x > width ? null : Math.min(at, shown.length - 1);
}

/** The padding that a step computed. `skips`: the kernels leave padding out. */
export const padding = (step, skips) => (skips ? 0 : Math.max(0, step.width - step.decodes - step.prompt));

function striped(drawing, colours) {
  const tile = Object.assign(document.createElement("canvas"), { width: 4, height: 4 });
  const paint = tile.getContext("2d");
  paint.fillStyle = colours.prompts;
  paint.fillRect(0, 0, 4, 4);
  paint.fillStyle = colours.ground;
  paint.fillRect(0, 0, 4, 1);
  return drawing.createPattern(tile, "repeat");
}

function drawBars(drawing, { shown, width, budget, skips, colours, chosen }) {
  // Where padding takes no time the budget is far above most steps.
  const most = Math.max(skips ? 1 : budget, ...shown.map((step) => (skips ? step.decodes + step.prompt : step.width)));
  const floor = TOP + BARS;
  const high = (tokens) => (tokens / most) * BARS;
  const prompts = striped(drawing, colours);
  shown.forEach((step, at) => {
    const x = width - (shown.length - at) * BAR;
    let y = floor;
    for (const [tokens, fill] of [[step.decodes, colours.decodes], [step.prompt, prompts], [padding(step, skips), colours.padding]]) {
      drawing.fillStyle = fill;
      drawing.fillRect(x, y - high(tokens), BAR - 1, high(tokens));
      y -= high(tokens);
    }
    if (step.number === chosen) {
      drawing.strokeStyle = colours.text;
      drawing.lineWidth = 1.5;
      drawing.strokeRect(x - 1, TOP - 3, BAR + 1, BARS + BETWEEN + TIMES + 6);
    }
  });
  const top = Math.min(budget, most);
  line(drawing, width, floor - high(top), colours.quiet, [4, 3]);
  line(drawing, width, floor, colours.line, []);
  label(drawing, short(top), floor - high(top) + 3, colours);
  label(drawing, "0", floor, colours);
}

function line(drawing, width, y, colour, dash) {
  drawing.strokeStyle = colour;
  drawing.lineWidth = 1;
  drawing.setLineDash(dash);
  drawing.beginPath();
  drawing.moveTo(LEFT, y + 0.5);
  drawing.lineTo(width, y + 0.5);
  drawing.stroke();
  drawing.setLineDash([]);
}

function label(drawing, text, y, colours) {
  drawing.fillStyle = colours.quiet;
  drawing.textAlign = "right";
  drawing.fillText(text, LEFT - 6, y + 3);
}

/** The range of a logarithmic axis around `values`, at least a factor of four. */
export function range(values) {
  const found = values.filter((value) => value > 0);
  const [least, most] = found.length ? [Math.min(...found), Math.max(...found)] : [1e-3, 1e-2];
  const middle = Math.sqrt(least * most);
  return [Math.min(least / 1.15, middle / 2), Math.max(most * 1.15, middle * 2)];
}

function drawTimes(drawing, { shown, width, limit, colours }) {
  const top = TOP + BARS + BETWEEN;
  const [low, high] = range([...shown.flatMap((step) => [step.seconds, step.predicted]), limit]);
  const y = (value) => top + TIMES * (1 - Math.log(Math.max(value, low) / low) / Math.log(high / low));
  for (const value of ticks(low, high)) {
    line(drawing, width, y(value), colours.line, [1, 4]);
    label(drawing, seconds(value), y(value), colours);
  }
  if (limit) {
    line(drawing, width, y(limit), colours.bad, [6, 4]);
    drawing.fillStyle = colours.bad;
    drawing.textAlign = "left";
    drawing.fillText(`predicted P99 ${seconds(limit)}`, LEFT + 2, y(limit) - 4);
  }
  shown.forEach((step, at) => {
    const x = width - (shown.length - at) * BAR;
    if (step.predicted > 0) {
      drawing.fillStyle = colours.quiet;
      drawing.fillRect(x, y(step.predicted) - 0.75, BAR - 1, 1.5);
    }
    drawing.fillStyle = step.seconds > limit && limit ? colours.bad : colours.accent;
    drawing.beginPath();
    drawing.arc(x + (BAR - 1) / 2, y(step.seconds), 2, 0, 2 * Math.PI);
    drawing.fill();
  });
}

/** Round values of a logarithmic axis: 1, 2 and 5 of each decade, only 1 where there are many decades. */
export function ticks(low, high) {
  const factors = Math.log10(high / low) > 2 ? [1] : [1, 2, 5];
  const found = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade += 1) {
    for (const factor of factors) {
      const value = factor * 10 ** decade;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
}

/**
 * Draws `shown`, the steps that fit `width`. `chosen`: the number of a step that is marked; `limit`: the predicted P99
 * of a step's seconds; `skips`: the kernels leave padding out.
 */
export function draw(canvas, view) {
  const drawing = context(canvas, view.width, HEIGHT);
  drawBars(drawing, view);
  drawTimes(drawing, view);
}
