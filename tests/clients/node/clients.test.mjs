// OpenAI's package for node with its helpers, and Vercel's ai over both APIs, with a model that says what it is told:
// tests/support/scripted_server.py. What a tool answered is in the model's next text.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const baseURL = `${process.env.URL_OF_SERVER}/v1`;
const model = process.env.MODEL;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });

const City = z.object({ name: z.string(), people: z.number() });
const bern = { name: "Bern", people: 137000 };
const script = (...texts) => `Do as it is written. SCRIPT: ${JSON.stringify(texts)}`;
const call = (name, given) => `<tool_call>\n${JSON.stringify({ name, arguments: given })}\n</tool_call>`;
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const people = ({ city }) => `${city.length} in ${city}`;
const turns = [call("people", { city: "Bern" }), "It was $RESULT."];

for (const stream of [false, true]) {
  test(`openai: runTools, ${stream ? "streamed" : "whole"}`, async () => {
    const runner = client.chat.completions.runTools({
      model,
      stream,
      messages: [{ role: "user", content: script(...turns) }],
      tools: [{ type: "function", function: { name: "people", parameters, parse: JSON.parse, function: people } }],
    });
    assert.equal(await runner.finalContent(), "It was 4 in Bern.");
  });
}

test("openai: parse, and the message goes back", async () => {
  const asked = { model, response_format: zodResponseFormat(City, "city") };
  const messages = [{ role: "user", content: script(JSON.stringify(bern), "{\"name\": \"Basel\", \"people\": 2}") }];
  const first = (await client.chat.completions.parse({ ...asked, messages })).choices[0].message;
  assert.deepEqual(first.parsed, bern);
  messages.push(first, { role: "user", content: "Another." });
  const second = (await client.chat.completions.parse({ ...asked, messages })).choices[0].message;
  assert.equal(second.parsed.name, "Basel");
});

test("openai: stream, and the message goes back", async () => {
  const messages = [{ role: "user", content: script("One.", "Two.") }];
  for (const expected of ["One.", "Two."]) {
    const message = await client.chat.completions.stream({ model, messages }).finalMessage();
    assert.equal(message.content, expected);
    messages.push(message, { role: "user", content: "Go on." });
  }
});

test("openai: responses, by the id of the one before", async () => {
  const tools = [{ type: "function", name: "people", parameters, strict: false }];
  const first = await client.responses.create({ model, tools, input: script(...turns) });
  const [found] = first.output.filter((item) => item.type === "function_call");
  const output = people(JSON.parse(found.arguments));
  const input = [{ type: "function_call_output", call_id: found.call_id, output }];
  const second = await client.responses.create({ model, tools, input, previous_response_id: first.id });
  assert.equal(second.output_text, "It was 4 in Bern.");
});

test("openai: responses, parsed and streamed", async () => {
  const asked = { model, input: script(JSON.stringify(bern)), text: { format: zodTextFormat(City, "city") } };
  assert.deepEqual((await client.responses.parse(asked)).output_parsed, bern);
  assert.deepEqual((await client.responses.stream(asked).finalResponse()).output_parsed, bern);
});

test("openai: what is wrong has its class", async () => {
  const messages = [{ role: "user", content: "Hello" }];
  await assert.rejects(client.chat.completions.create({ model: "nobody", messages }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ model, messages, temperature: 3 }), OpenAI.BadRequestError);
});

const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({
  name: "jaxgen",
  baseURL,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const kinds = { responses: openai.responses(model), chat: openai.chat(model), compatible: compatible(model) };
const tools = {
  people: tool({ description: "Count.", inputSchema: z.object({ city: z.string() }), execute: async (given) => people(given) }),
};

for (const [name, spoken] of Object.entries(kinds)) {
  const asked = { model: spoken, maxRetries: 0, system: "Count." };

  test(`ai: generateText with a tool, ${name}`, async () => {
    const done = await generateText({ ...asked, tools, prompt: script(...turns), stopWhen: stepCountIs(4) });
    assert.equal(done.text, "It was 4 in Bern.");
    assert.equal(done.steps.length, 2);
    const answers = done.steps.flatMap((step) => step.response.messages);
    const messages = [{ role: "user", content: script(...turns, "That is all.") }, ...answers];
    const more = await generateText({ ...asked, messages: [...messages, { role: "user", content: "And?" }], tools });
    assert.equal(more.text, "That is all.");
  });

  test(`ai: streamText with a tool, ${name}`, async () => {
    const done = streamText({ ...asked, tools, prompt: script(...turns), stopWhen: stepCountIs(4) });
    let text = "";
    for await (const piece of done.textStream) text += piece;
    assert.equal(text, "It was 4 in Bern.");
    assert.ok((await done.usage).outputTokens > 0);
  });

  test(`ai: generateObject, ${name}`, async () => {
    const done = await generateObject({ ...asked, schema: City, prompt: script(JSON.stringify(bern)) });
    assert.deepEqual(done.object, bern);
  });

  test(`ai: an object after a tool, ${name}`, async () => {
    const said = script(turns[0], JSON.stringify(bern));
    const output = Output.object({ schema: City });
    const done = await generateText({ ...asked, tools, output, prompt: said, stopWhen: stepCountIs(4) });
    assert.deepEqual(done.output, bern);
  });
}
