// What was sent, as a command of curl and as Python. API keys are never in it.

import { BASE, key } from "../api.js";

const KEY = "OPENAI_API_KEY";
const inShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curl(path, body) {
  const lines = [
    `curl -N ${inShell(new URL(path, BASE).href)}`,
    ...(key() ? [`  -H "Authorization: Bearer $${KEY}"`] : []),
    "  -H 'Content-Type: application/json'",
    `  -d ${inShell(JSON.stringify(body, null, 2))}`,
  ];
  return lines.join(" \\\n");
}

/** A value as a literal of Python. */
export function literal(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const list = Array.isArray(value);
  const entries = list
    ? value.map((one) => literal(one, deeper))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, deeper)}`);
  const [open, close] = list ? "[]" : "{}";
  if (entries.length === 0) return open + close;
  return `${open}\n${entries.map((entry) => `${deeper}${entry},\n`).join("")}${indent}${close}`;
}

// Arguments of openai's create(); what is not among them goes into extra_body.
const NAMED = new Set([
  "model", "messages", "prompt", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop",
  "frequency_penalty", "presence_penalty", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice",
  "service_tier", "stream", "stream_options",
]);
const NAMED_FOR_TEXT = new Set([...NAMED].filter((name) =>
  !["service_tier", "response_format", "tools", "tool_choice", "top_logprobs", "max_completion_tokens"].includes(name)));

export function python(path, body) {
  const chat = path.includes("chat");
  const named = chat ? NAMED : NAMED_FOR_TEXT;
  const entries = Object.entries(body);
  const extra = entries.filter(([name]) => !named.has(name));
  const args = [
    ...entries.filter(([name]) => named.has(name)),
    ...(extra.length ? [["extra_body", Object.fromEntries(extra)]] : []),
  ].map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`);
  const secret = key() ? `os.environ["${KEY}"]` : `os.environ.get("${KEY}", "none")`;
  const piece = chat ? 'chunk.choices[0].delta.content or ""' : "chunk.choices[0].text";
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(new URL("v1", BASE).href)}, api_key=${secret})
stream = client.${chat ? "chat.completions" : "completions"}.create(
${args.join("")})
for chunk in stream:
    if chunk.choices:
        print(${piece}, end="", flush=True)
print()
`;
}
