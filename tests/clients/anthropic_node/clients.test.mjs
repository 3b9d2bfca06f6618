// Anthropic's package for node with its helpers, with a model that says what it is told:
// tests/support/scripted_server.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";

const model = process.env.MODEL;
const client = new Anthropic({ baseURL: process.env.URL_OF_SERVER, apiKey: "none", maxRetries: 0 });
const script = (...texts) => `Do as it is written. SCRIPT: ${JSON.stringify(texts)}`;
const call = (name, given) => `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`;
const turns = [call("people", { city: "Bern" }), "It was $RESULT."];
const tools = [{ name: "people", input_schema: { type: "object", properties: { city: { type: "string" } } } }];
const asked = (...texts) => ({ model, max_tokens: 500, messages: [{ role: "user", content: script(...texts) }] });
const plain = (message) => ({
  ...message,
  id: "",
  _request_id: "",
  parsed_output: null,
  content: message.content.map(({ id, parsed_output, ...block }) => block),
});

for (const text of ["Hello 😀", `Well. ${turns[0]}`, ""]) {
  test(`whole and streamed: ${JSON.stringify(text)}`, async () => {
    const fields = { ...asked(text), tools };
    const whole = await client.messages.create(fields);
    const kinds = [];
    const stream = client.messages.stream(fields).on("streamEvent", (event) => kinds.push(event.type));
    const streamed = await stream.finalMessage();
    assert.deepEqual(plain(JSON.parse(JSON.stringify(streamed))), plain(JSON.parse(JSON.stringify(whole))));
    assert.equal(kinds[0], "message_start");
    assert.equal(kinds.at(-1), "message_stop");
  });
}

test("the helpers of streams", async () => {
  let text = "";
  const stream = client.messages.stream(asked("Hello")).on("text", (piece) => (text += piece));
  assert.equal(await stream.finalText(), "Hello");
  assert.equal(text, "Hello");
  const snapshots = [];
  const calls = client.messages.stream({ ...asked(turns[0]), tools });
  calls.on("inputJson", (_, snapshot) => snapshots.push(snapshot));
  await calls.done();
  assert.deepEqual(snapshots.at(-1), { city: "Bern" });
});

test("events, one after another", async () => {
  const kinds = [];
  for await (const event of await client.messages.create({ ...asked("Hello"), stream: true })) kinds.push(event.type);
  assert.deepEqual(kinds.slice(-2), ["message_delta", "message_stop"]);
});

for (const stream of [false, true]) {
  test(`the runner of tools, ${stream ? "streamed" : "whole"}`, async () => {
    const people = betaZodTool({
      name: "people",
      description: "Count.",
      inputSchema: z.object({ city: z.string() }),
      run: ({ city }) => `${city.length} in ${city}`,
    });
    const runner = client.beta.messages.toolRunner({ ...asked(...turns), tools: [people], stream });
    const last = await runner.runUntilDone();
    assert.equal(last.content[0].text, "It was 4 in Bern.");
  });
}

test("counts and models", async () => {
  const { max_tokens, ...fields } = { ...asked("Hello"), tools };
  const { usage } = await client.messages.create({ ...fields, max_tokens });
  const { input_tokens } = await client.messages.countTokens(fields);
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
  const found = [];
  for await (const one of client.models.list()) found.push(one.id);
  assert.deepEqual(found, [model]);
});

test("what is wrong has its class", async () => {
  await assert.rejects(client.messages.create({ ...asked("Hello"), model: "nobody" }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...asked("Hello"), temperature: 3 }), Anthropic.BadRequestError);
});
