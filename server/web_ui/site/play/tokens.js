// An answer's tokens, each coloured and underlined by its probability, with alternatives on hover and on focus.

import { html, useMemo, useState } from "../vendor/preact.js";

const RUN = 64; // tokens that are drawn again together
const LIMITS = [0.02, 0.1, 0.3, 0.6, 0.9];

/** 0 for the least probable tokens to 5 for sure ones. */
export const levelOf = (logprob) =>
  (logprob === null ? LIMITS.length : LIMITS.filter((limit) => Math.exp(logprob) >= limit).length);

export const percent = (logprob) => {
  if (logprob === null) return "unknown";
  const share = Math.exp(logprob) * 100;
  return `${share >= 10 ? share.toFixed(0) : share.toPrecision(2)} %`;
};

// What cannot be seen is written out.
const visible = (text) => text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t");
const named = (text) => JSON.stringify(text).slice(1, -1).replace(/ /g, "␣");

function Run({ tokens, from, to, at, onShow }) {
  const here = at >= from && at < to ? at : -1;
  return useMemo(() => tokens.slice(from, to).map(({ text, logprob }, i) => html`<span key=${from + i} role="option"
    data-at=${from + i} class=${`token p${levelOf(logprob)}`} aria-selected=${String(from + i === here)}
    tabindex=${from + i === Math.max(at, 0) ? 0 : -1} aria-label=${`${named(text)}, ${percent(logprob)}`}
    onMouseEnter=${() => onShow(from + i)} onFocus=${() => onShow(from + i)}>${visible(text)}</span>`), [tokens, from, to, here, at < 0]);
}

function Details({ token, at }) {
  if (!token) return html`<p class="alternatives quiet">Point at a token, or go through them with the arrow keys, to see what else it might have been.</p>`;
  return html`<div class="alternatives">
    <p>Token ${at + 1}: <code>${named(token.text)}</code> ${percent(token.logprob)} <span class="quiet">log-probability ${token.logprob?.toFixed(4) ?? "unknown"}</span></p>
    ${token.top.length > 0 && html`<ol>${token.top.map(([text, logprob], i) => html`<li key=${i}>
      <code>${named(text)}</code> ${percent(logprob)}
      <meter min="0" max="1" value=${Math.exp(logprob)} aria-label=${`Probability of ${named(text)}`}></meter></li>`)}</ol>`}
  </div>`;
}

const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

export function Tokens({ tokens, live }) {
  const [at, setAt] = useState(-1);
  const runs = [];
  for (let from = 0; from < tokens.length; from += RUN) runs.push(from);
  const pressed = (event) => {
    if (!(event.key in MOVES)) return;
    event.preventDefault();
    const next = Math.min(Math.max(Math.max(at, 0) + MOVES[event.key], 0), tokens.length - 1);
    event.currentTarget.querySelector(`[data-at="${next}"]`).focus();
  };
  return html`<div class="tokens" role="listbox" aria-label="Tokens of the answer" aria-orientation="horizontal" onKeyDown=${pressed}>
      ${runs.map((from) => html`<${Run} key=${from} tokens=${tokens} from=${from} to=${Math.min(from + RUN, tokens.length)} at=${at} onShow=${setAt} />`)}
    </div>
    ${!live && html`<${Details} token=${tokens[at]} at=${at} />`}`;
}
