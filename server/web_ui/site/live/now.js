// What the engine does now: requests, cache blocks, latencies, the engine itself, the link to host memory.

import { html } from "../vendor/preact.js";
import { bytes, count, percent, seconds, short } from "./format.js";

function Card({ title, children }) {
  const id = `${title.toLowerCase().replaceAll(" ", "-")}-title`;
  return html`<section class="card" aria-labelledby=${id}><h2 id=${id}>${title}</h2>${children}</section>`;
}

/** Rows of `{name: {running, waiting}}`; nothing where there is nothing to tell apart. */
function Owners({ of, what }) {
  const rows = Object.entries(of ?? {});
  if (!rows.length) return null;
  return html`<table class="numbers">
    <thead><tr><th scope="col">${what}</th><th scope="col">Running</th><th scope="col">Waiting</th></tr></thead>
    <tbody>${rows.map(([name, { running, waiting }]) => html`<tr key=${name}>
      <th scope="row">${name}</th><td>${count(running)}</td><td>${count(waiting)}</td></tr>`)}
    </tbody>
  </table>`;
}

function Requests({ now, most }) {
  const sum = (field) => Object.values(now.classes).reduce((total, one) => total + one[field], 0);
  return html`<${Card} title="Requests">
    <p class="big">${count(sum("running"))} <small>running of ${count(most)}</small>, ${count(sum("waiting"))} <small>waiting</small></p>
    <${Owners} of=${now.classes} what="Class" />
    <${Owners} of=${now.callers} what="API key" />
  <//>`;
}

/** A bar of parts `[class name, label, number]` that share `total`, with each part's number. */
function Bar({ parts, total }) {
  return html`
    <div class="stack" aria-hidden="true">
      ${parts.map(([name, , value]) => html`<span key=${name} class=${`swatch ${name}`} style=${{ flexGrow: value, display: value ? "" : "none" }}></span>`)}
    </div>
    <dl class="numbers">
      ${parts.map(([name, label, value]) => html`<div key=${name}>
        <dt><span class=${`swatch ${name}`}></span>${label}</dt><dd>${count(value)} <small>${percent(total ? value / total : 0)}</small></dd></div>`)}
    </dl>`;
}

function States({ of: { total, free, cached, used } }) {
  return html`<${Bar} total=${total} parts=${[["used", "Used", used], ["cached", "Cached", cached], ["free", "Free", free]]} />`;
}

/** `kinds`: the blocks of each kind of cache, the first as `blocks`; null where there is one. `snapshots`: null without states. */
function Blocks({ blocks, kinds, snapshots, size }) {
  const { total, host, host_total: hostTotal } = blocks;
  return html`<${Card} title="Cache blocks">
    <p class="big">${count(total)} <small>blocks of ${count(size)} tokens</small></p>
    <${States} of=${blocks} />
    ${(kinds ?? []).slice(1).map((kind) => html`<h3 key=${kind.name}>Layers with ${kind.name}: ${count(kind.total)} blocks</h3>
      <${States} of=${kind} />`)}
    ${snapshots?.total > 0 && html`<h3>Snapshots of states</h3>
      <${Bar} total=${snapshots.total} parts=${[["cached", "Held", snapshots.held], ["free", "Free", snapshots.total - snapshots.held]]} />`}
    ${hostTotal > 0 && html`<h3>Host memory</h3>
      <${Bar} total=${hostTotal} parts=${[["host", "Used", host], ["free", "Free", hostTotal - host]]} />`}
  <//>`;
}

function Latency({ now }) {
  const rows = [["Time to first token", now.ttft], ["Time between tokens", now.gap]];
  return html`<${Card} title="Latency">
    <p class="big">${short(now.tokens_per_second.generated)} <small>tokens/s,</small> ${short(now.tokens_per_second.prompt)} <small>prompt tokens/s</small></p>
    <table class="numbers">
      <caption>The last ten seconds</caption>
      <thead><tr><td></td><th scope="col">P50</th><th scope="col">P95</th><th scope="col">Count</th></tr></thead>
      <tbody>${rows.map(([name, one]) => html`<tr key=${name}><th scope="row">${name}</th>
        <td>${seconds(one?.p50)}</td><td>${seconds(one?.p95)}</td><td>${count(one?.count ?? 0)}</td></tr>`)}
      </tbody>
    </table>
  <//>`;
}

function Engine({ now }) {
  const compilations = now.compilations_after_ready;
  // A step in flight is not a stall.
  const stalled = now.stalled_seconds > Math.max(1, 3 * now.longest_step_seconds);
  return html`<${Card} title="Engine">
    <p class="big">${now.state}</p>
    <dl class="numbers">
      <div class=${compilations ? "loud" : ""}><dt>Compilations after ready</dt><dd>${count(compilations)}</dd></div>
      ${compilations > 0 && html`<p class="bad small">Each of them delayed all requests. There should be none: please report the shape that is in the log.</p>`}
      <div><dt>Preemptions</dt><dd>${count(now.preemptions)}</dd></div>
      <div><dt>Predicted step time, P99</dt><dd>${now.longest_step_seconds > 0 ? seconds(now.longest_step_seconds) : "–"}</dd></div>
      ${stalled && html`<div class="loud"><dt>No step for</dt><dd>${seconds(now.stalled_seconds)}</dd></div>`}
    </dl>
  <//>`;
}

function Link({ offload }) {
  const rows = [
    ["To the device", offload.to_device_bytes_per_second, offload.to_device_busy],
    ["To host memory", offload.to_host_bytes_per_second, offload.to_host_busy],
  ];
  return html`<${Card} title="Offload link">
    <table class="numbers">
      <thead><tr><th scope="col">Direction</th><th scope="col">Rate</th><th scope="col">Busy</th></tr></thead>
      <tbody>${rows.map(([name, rate, busy]) => html`<tr key=${name}><th scope="row">${name}</th>
        <td>${bytes(rate)}/s</td><td><meter min="0" max="1" value=${busy} aria-label=${`${name}, busy`}></meter> ${percent(busy)}</td></tr>`)}
      </tbody>
    </table>
  <//>`;
}

export function Now({ state: { now, hello } }) {
  if (!now) return null;
  return html`
    <${Requests} now=${now} most=${hello.max_num_seqs} />
    <${Blocks} blocks=${now.blocks} kinds=${now.kinds} snapshots=${now.snapshots} size=${hello.block_size} />
    <${Latency} now=${now} />
    <${Engine} now=${now} />
    ${now.offload && html`<${Link} offload=${now.offload} />`}`;
}
