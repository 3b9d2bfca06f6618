// One request and its answer, as it comes.

import { Refused, events } from "../api.js";

/** What an answer is made of while it streams. `state`: streaming, done, stopped (by the user), cut or failed. */
export const emptyAnswer = () => ({ state: "streaming", id: null, finish: null, error: null, began: Date.now() });

const chatTokens = (logprobs) => logprobs.content.map((one) => ({
  text: one.token,
  logprob: one.logprob,
  top: one.top_logprobs.map((other) => [other.token, other.logprob]),
}));
const textTokens = (logprobs) => logprobs.tokens.map((text, i) => ({
  text,
  logprob: logprobs.token_logprobs[i],
  top: Object.entries(logprobs.top_logprobs[i] ?? {}),
}));

function takeCalls(message, deltas) {
  message.tool_calls ??= [];
  for (const delta of deltas) {
    const call = (message.tool_calls[delta.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (delta.id) call.id = delta.id;
    if (delta.function?.name) call.function.name = delta.function.name;
    call.function.arguments += delta.function?.arguments ?? "";
  }
}

function takeChoice(message, choice) {
  const { answer } = message;
  message.content += choice.text ?? choice.delta?.content ?? "";
  if (choice.delta?.tool_calls) takeCalls(message, choice.delta.tool_calls);
  if (choice.logprobs) {
    answer.tokens ??= [];
    answer.tokens.push(...(choice.logprobs.content ? chatTokens : textTokens)(choice.logprobs));
  }
  if (choice.token_ids?.length) (answer.tokenIds ??= []).push(...choice.token_ids);
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  if (choice.latency) answer.latency = choice.latency;
}

/** Adds an event's JSON to the message; returns whether it was an error. */
export function take(message, chunk) {
  const { answer } = message;
  if (chunk.error) {
    answer.error = chunk.error.message;
    return true;
  }
  answer.id ??= chunk.id;
  if (chunk.usage) answer.usage = chunk.usage;
  for (const choice of chunk.choices ?? []) {
    if (answer.firstAfter === undefined && (choice.text || choice.delta?.content || choice.delta?.tool_calls)) {
      answer.firstAfter = Date.now() - answer.began;
    }
    takeChoice(message, choice);
  }
  return false;
}

/** Send the body and fill `message` with its answer; `changed` is called after each event. Does not throw. */
export async function ask(path, body, message, signal, changed) {
  const { answer } = message;
  let ended = "cut";
  try {
    for await (const { data } of events(path, { body, signal })) {
      if (data === "[DONE]") {
        ended = "done";
        break;
      }
      if (take(message, JSON.parse(data))) {
        ended = "failed";
        break;
      }
      changed();
    }
    if (ended === "cut") answer.error = "The connection ended before the answer did. What had come is kept.";
  } catch (error) {
    ended = signal.aborted ? "stopped" : error instanceof Refused ? "failed" : "cut";
    if (ended === "failed") answer.error = error.message;
    if (ended === "cut") {
      answer.error = answer.id
        ? "The connection was lost. What had come is kept."
        : "The server could not be reached. Nothing was answered.";
    }
  }
  answer.state = ended;
  answer.took = Date.now() - answer.began;
  changed();
}
