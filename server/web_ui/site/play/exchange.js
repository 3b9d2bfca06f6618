// Conversations as a file, and files as conversations or text.

const FORMAT = "jaxgen-conversations";
const ROLES = ["user", "assistant", "tool"];

/** Longest file that is put into a message. */
export const MAX_TEXT_BYTES = 1 << 20;
const MAX_IMPORT_BYTES = 64 << 20;

const messageOut = ({ role, content, files, tool_calls, tool_call_id, answer, branches }) => ({
  role,
  content,
  ...(files ? { files } : {}),
  ...(tool_calls ? { tool_calls } : {}),
  ...(tool_call_id ? { tool_call_id } : {}),
  ...(branches ? { branches: { at: branches.at, tails: branches.tails.map((tail) => tail && tail.map(messageOut)) } } : {}),
  ...(answer ? { finish_reason: answer.finish } : {}),
});

export const toFile = (chats) => JSON.stringify({
  format: FORMAT,
  version: 1,
  conversations: chats.map(({ id, title, mode, system, settings, updated, messages }) => ({
    id, title, mode, system, settings, updated, messages: messages.map(messageOut),
  })),
}, null, 1);

function need(condition, where, right) {
  if (!condition) throw new Error(`${where} must be ${right}`);
}

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function callIn(call, where) {
  const { name, arguments: given } = call?.function ?? {};
  need(isText(call?.id) && isText(name) && isText(given), where, "a call with the texts id, function.name and function.arguments");
  return { id: call.id, type: "function", function: { name, arguments: given } };
}

function filesIn(files, where) {
  need(Array.isArray(files), where, "a list");
  return files.map(({ name, text } = {}, i) => {
    need(isText(name) && isText(text), `${where}[${i}]`, "a file with the texts name and text");
    return { name, text };
  });
}

function branchesIn(branches, where) {
  const { at, tails } = branches ?? {};
  need(Array.isArray(tails) && at in tails, where, "an object with a list tails and at, an index of it");
  return { at, tails: tails.map((tail, i) => {
    if (i === at) return null;
    need(Array.isArray(tail) && tail.length > 0, `${where}.tails[${i}]`, "a list of messages");
    return tail.map((message, j) => messageIn(message, `${where}.tails[${i}][${j}]`));
  }) };
}

function messageIn(message, where) {
  need(isObject(message), where, "an object");
  need(ROLES.includes(message.role), `${where}.role`, `one of ${ROLES.join(", ")}`);
  need(isText(message.content), `${where}.content`, "a text");
  const { role, content, files, branches, tool_calls: calls, tool_call_id: call } = message;
  need(calls === undefined || Array.isArray(calls), `${where}.tool_calls`, "a list");
  need(call === undefined || isText(call), `${where}.tool_call_id`, "a text");
  return {
    role,
    content,
    ...(files === undefined ? {} : { files: filesIn(files, `${where}.files`) }),
    ...(branches === undefined ? {} : { branches: branchesIn(branches, `${where}.branches`) }),
    ...(calls ? { tool_calls: calls.map((one, i) => callIn(one, `${where}.tool_calls[${i}]`)) } : {}),
    ...(call ? { tool_call_id: call } : {}),
    ...(role === "assistant"
      ? { answer: { state: "done", finish: isText(message.finish_reason) ? message.finish_reason : null } }
      : {}),
  };
}

function settingsIn(settings, where) {
  need(settings === undefined || isObject(settings), where, "an object");
  const kept = Object.entries(settings ?? {}).filter(([, value]) => ["string", "boolean"].includes(typeof value));
  return Object.fromEntries(kept);
}

function chatIn(chat, where) {
  need(isObject(chat), where, "an object");
  need(isText(chat.title), `${where}.title`, "a text");
  need(["chat", "completion"].includes(chat.mode), `${where}.mode`, "chat or completion");
  need(chat.system === undefined || isText(chat.system), `${where}.system`, "a text");
  need(Array.isArray(chat.messages), `${where}.messages`, "a list");
  return {
    title: chat.title.slice(0, 200),
    mode: chat.mode,
    system: chat.system ?? "",
    settings: settingsIn(chat.settings, `${where}.settings`),
    messages: chat.messages.map((message, i) => messageIn(message, `${where}.messages[${i}]`)),
  };
}

/** The conversations of a file's text, without ids. Throws an Error that names what is wrong and what would be right. */
export function fromFile(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("this is not JSON");
  }
  need(found?.format === FORMAT, "format", `"${FORMAT}", as in a file that this page exports`);
  need(found.version === 1, "version", "1");
  need(Array.isArray(found.conversations), "conversations", "a list");
  return found.conversations.map((chat, i) => chatIn(chat, `conversations[${i}]`));
}

export async function readImport(file) {
  try {
    need(file.size <= MAX_IMPORT_BYTES, "the file", `at most ${MAX_IMPORT_BYTES >> 20} MiB long`);
    return fromFile(await file.text());
  } catch (error) {
    throw new Error(`${file.name} was not imported: ${error.message}.`);
  }
}

/** The text of a file. Throws an Error that names the file where it is too long or no text. */
export async function textOf(file) {
  if (file.size > MAX_TEXT_BYTES) {
    throw new Error(`${file.name} has ${file.size} bytes; a file may have ${MAX_TEXT_BYTES}.`);
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch { /* said below */ }
  throw new Error(`${file.name} is not text in UTF-8, and only text can be sent.`);
}

/** A file's text in a fence of Markdown, longer than those within. */
export function fenced(name, text) {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((found) => found.length));
  const fence = "`".repeat(longest + 1);
  return `${name}\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}\n`;
}

/** What is sent of a message: its files, then its own words. In a chat each file is in a fence, below its name. */
export function wholeText({ content, files = [] }, mode) {
  const pieces = [...files.map(({ name, text }) => (mode === "chat" ? fenced(name, text) : text)), content];
  return pieces.reduce((before, piece) => before + (before && !before.endsWith("\n") ? "\n" : "") + piece);
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url));
}
