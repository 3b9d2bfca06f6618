// Versions of an answer, or of an edited message: each with what came after it. Pure functions on lists of messages.
//
// The message that is shown has `branches`: `{at, tails}`, of which `tails[at]` is null, since that one is shown. Each
// of the others is a list of messages that begins with another version.

const ALONE = { at: 0, tails: [null] };

/** The `branches` of a message that is to take the place of the one at `index` and of all after it. */
export function forked(messages, index) {
  const [{ branches = ALONE, ...head }, ...after] = messages.slice(index);
  const empty = head.role === "assistant" && !head.content && !head.tool_calls?.length && !after.length;
  if (empty) return branches;
  return { at: branches.tails.length, tails: [...branches.tails.with(branches.at, [head, ...after]), null] };
}

/** The messages with version `at` of the one at `index`, and what came after it. */
export function switched(messages, index, at) {
  const [{ branches, ...head }, ...after] = messages.slice(index);
  const [shown, ...rest] = branches.tails[at];
  const tails = branches.tails.with(branches.at, [head, ...after]).with(at, null);
  return [...messages.slice(0, index), { ...shown, branches: { at, tails } }, ...rest];
}

/** The messages without the one at `index`; where it has other versions, with the one before it, or else the next. */
export function without(messages, index) {
  const { branches } = messages[index];
  if (!branches || branches.tails.length < 2) return messages.filter((_, i) => i !== index);
  const at = branches.at === 0 ? 1 : branches.at - 1;
  const shown = switched(messages, index, at);
  const tails = branches.tails.filter((_, i) => i !== branches.at && i !== at);
  const place = Math.min(at, branches.at);
  return shown.with(index, { ...shown[index], branches: { at: place, tails: tails.toSpliced(place, 0, null) } });
}
