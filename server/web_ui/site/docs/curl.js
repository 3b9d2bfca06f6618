// The command that calls a route, with a body that the server takes.

import { BASE } from "../api.js";

const BODIES = {
  "/v1/completions": { prompt: "Once upon a time", max_tokens: 32 },
  "/v1/chat/completions": { messages: [{ role: "user", content: "Hello!" }], max_tokens: 32 },
  "/v1/responses": { input: "Hello!", max_output_tokens: 32 },
  "/v1/responses/input_tokens": { input: "Hello!" },
  "/v1/messages": { messages: [{ role: "user", content: "Hello!" }], max_tokens: 32 },
  "/v1/messages/count_tokens": { messages: [{ role: "user", content: "Hello!" }] },
  "/v1/embeddings": { input: ["one text", "another"] },
  "/tokenize": { prompt: "Hello!" },
  "/detokenize": { tokens: [1, 2, 3] },
  "/v1/batches": { input_file_id: "FILE_ID", endpoint: "/v1/completions", completion_window: "24h" },
};

/** The command in lines. `keys`: whether the route wants an API key. */
export function curlOf(method, path, operation, keys) {
  const address = path.replace(/^\//, "").replace(/{(\w+)}/g, (_, name) => name.toUpperCase());
  const media = Object.keys(operation.requestBody?.content ?? {});
  const lines = [`curl ${method === "get" || media.length ? "" : `-X ${method.toUpperCase()} `}${new URL(address, BASE)}`];
  if (keys) lines.push(`-H "Authorization: Bearer $JAXGEN_API_KEY"`);
  if (media.includes("application/json")) {
    lines.push(`-H "Content-Type: application/json"`, `-d '${JSON.stringify(BODIES[path] ?? {}, null, 2)}'`);
  } else if (media.includes("multipart/form-data")) lines.push("-F purpose=batch", "-F file=@FILE.jsonl");
  return lines.join(" \\\n  ");
}
