// Whether two answers to the same request are the same bits.

const shown = (text) => JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}…` : text);

const partAt = (one, other) => {
  const limit = Math.min(one.length, other.length);
  for (let i = 0; i < limit; i++) if (one[i] !== other[i]) return i;
  return one.length === other.length ? -1 : limit;
};

/** The numbers that are compared bit for bit in addition to tokens: the log-probabilities, if both answers have them. */
const numbers = (tokens) => tokens.flatMap((token) => [token.logprob, ...token.top.map(([, value]) => value)]);

/**
 * `{same, words}` of an answer and its repetition, both `{content, tool_calls, answer}`. `body`: what was sent.
 */
export function compare(first, again, body) {
  if (again.answer.state !== "done") {
    return { same: null, words: `Not compared: ${again.answer.error ?? "the second answer was stopped."}` };
  }
  const ids = [first, again].map(({ answer }) => answer.tokenIds);
  const texts = [first, again].map(({ content, tool_calls }) =>
    content + (tool_calls ?? []).map((call) => call.function.name + call.function.arguments).join(""));
  const known = ids[0] !== undefined && ids[1] !== undefined;
  // What was stopped has only a beginning to compare.
  const cut = first.answer.state === "done" ? (list) => list : (list, length) => list.slice(0, length);
  const [ours, theirs] = known ? ids : texts;
  const at = partAt(ours, cut(theirs, ours.length));
  if (at >= 0) {
    const hint = "seed" in body || body.temperature === 0 ? "" : " No seed was sent: with one they are equal.";
    const from = known ? "" : `: ${shown(texts[0].slice(at))} and ${shown(texts[1].slice(at))}`;
    return { same: false, words: `The answers differ from ${known ? "token" : "character"} ${at + 1}${from}.${hint}` };
  }
  const logprobs = [first, again].map(({ answer }) => answer.tokens && numbers(answer.tokens));
  const both = logprobs[0] !== undefined && logprobs[1] !== undefined;
  if (both && partAt(logprobs[0], cut(logprobs[1], logprobs[0].length)) >= 0) {
    return { same: false, words: "The same tokens, but log-probabilities that differ." };
  }
  const what = known ? `${ours.length} tokens` : `${ours.length} characters`;
  return { same: true, words: `Same bits: ${what}${both ? ` and ${logprobs[0].length} log-probabilities` : ""} are equal.` };
}
