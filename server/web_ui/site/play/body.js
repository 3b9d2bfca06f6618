// From a conversation and its settings to the body of a request.

import { wholeText } from "./exchange.js";
import { fieldsOf, numbersIn, read } from "./schema.js";

export const PATHS = { chat: "v1/chat/completions", completion: "v1/completions" };

/** The order of the form; further numbers that the server describes come after these. */
const ORDER = [
  "temperature", "top_p", "top_k", "min_p", "max_completion_tokens", "max_tokens", "min_tokens", "seed",
  "frequency_penalty", "presence_penalty", "repetition_penalty", "top_logprobs", "logprobs", "priority",
];

/** The numbers of the form in a mode. What both routes have under two names is here under one: see `assign`. */
export function numbersOf(openapi, mode) {
  const left = mode === "chat" ? ["max_tokens", "logprobs"] : ["max_completion_tokens", "top_logprobs"];
  const path = `/${PATHS[mode]}`;
  const names = new Set([...ORDER, ...numbersIn(openapi, path)]);
  return fieldsOf(openapi, path, [...names].filter((name) => !left.includes(name)));
}

/** Where a number is kept in the settings: a change of mode keeps it. */
export const keyOf = (name) =>
  ({ max_completion_tokens: "max_tokens", top_logprobs: "logprobs" })[name] ?? name;

/** Most tokens of an answer where neither user nor model say otherwise. */
const MAX_TOKENS = 512;
/** Values that change nothing: the form shows them in grey. */
const NEUTRAL = { top_k: 0, min_p: 0, repetition_penalty: 1 };

/** The settings of a first conversation: the model's sampling defaults, and a limit that leaves room for the prompt. */
export function startSettings({ capabilities, models }) {
  const { max_tokens: limit, ...defaults } = capabilities.sampling_defaults;
  const room = Math.max(1, Math.floor(models[0].max_model_len / 4));
  const values = { ...defaults, max_tokens: limit ?? Math.min(MAX_TOKENS, room) };
  const shown = Object.entries(values).filter(([name, value]) => value !== NEUTRAL[name]);
  return Object.fromEntries(shown.map(([name, value]) => [name, String(value)]));
}

const unescaped = (line) =>
  line.replace(/\\(n|t|\\)/g, (_, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter]);
const linesOf = (text) => (text ?? "").split("\n").filter((line) => line !== "");

class Problem extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function parsed(field, what, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Problem(field, `${what} must be JSON: ${error.message}.`);
  }
}

const STRUCTURES = {
  json_object: () => ({ response_format: { type: "json_object" } }),
  json_schema: (text) => ({
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: parsed("structureText", "The schema", text) } },
  }),
  regex: (text) => ({ structured_outputs: { regex: text } }),
  choice: (text) => ({ structured_outputs: { choice: linesOf(text).map(unescaped) } }),
  grammar: (text) => ({ structured_outputs: { grammar: text } }),
};

function assign(body, field, value, mode) {
  body[field.name] = value;
  if (field.name === "top_logprobs" && mode === "chat") body.logprobs = true;
}

/** The fields that the settings ask for, in an object without fields that are not set. Throws an Error with `field`. */
export function fieldsFrom(settings, openapi, mode) {
  const body = {};
  for (const field of numbersOf(openapi, mode)) {
    const { value, problem } = read(field, settings[keyOf(field.name)]);
    if (problem) throw new Problem(keyOf(field.name), problem);
    if (value !== undefined) assign(body, field, value, mode);
  }
  const stop = linesOf(settings.stop).map(unescaped);
  if (stop.length) body.stop = stop;
  if (settings.service_tier) body.service_tier = settings.service_tier;
  if (settings.return_latency) body.return_latency = true;
  if (settings.structure) Object.assign(body, STRUCTURES[settings.structure](settings.structureText ?? ""));
  if (mode === "chat" && (settings.tools ?? "").trim()) {
    body.tools = parsed("tools", "tools", settings.tools);
    if (settings.tool_choice) body.tool_choice = settings.tool_choice;
  }
  return body;
}

const messageOf = ({ tool_calls, tool_call_id, ...message }) => ({
  role: message.role,
  content: tool_calls?.length && !message.content ? null : wholeText(message, "chat"),
  ...(tool_calls?.length ? { tool_calls } : {}),
  ...(tool_call_id ? { tool_call_id } : {}),
});

/**
 * The body that asks for the answer to the messages before `end`. Token ids are asked for where the answer can be had
 * again: with a seed, or drawn without chance.
 */
export function bodyFor(chat, end, server) {
  const fields = fieldsFrom(chat.settings, server.openapi, chat.mode);
  const before = chat.messages.slice(0, end);
  const system = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  const text = chat.mode === "chat"
    ? { messages: [...system, ...before.map(messageOf)] }
    : { prompt: before.length ? wholeText(before.at(-1), chat.mode) : "" };
  const repeatable = "seed" in fields || fields.temperature === 0;
  return {
    model: server.models[0].id,
    ...text,
    ...fields,
    ...(repeatable ? { return_token_ids: true } : {}),
    stream: true,
    stream_options: { include_usage: true },
  };
}
