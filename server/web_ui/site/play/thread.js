// The messages of a conversation: the last ones, and earlier ones on request, so that a long one opens at once.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { Message } from "./message.js";
import { store } from "./store.js";

const FIRST = 40;
const MORE = 200;
const NEAR_PIXELS = 100;

/** Stay at the end of the page while an answer grows, unless the user has scrolled away or looks at other versions. */
function useEnd(shown, chat, growing) {
  const atEnd = useRef(true);
  const before = useRef({});
  useEffect(() => {
    let top = scrollY;
    const scrolled = () => {
      const page = document.documentElement;
      const near = page.scrollHeight - page.scrollTop - page.clientHeight < NEAR_PIXELS;
      // The page may have grown since we scrolled to its end; only a user scrolls up.
      if (near || page.scrollTop < top) atEnd.current = near;
      top = page.scrollTop;
    };
    addEventListener("scroll", scrolled, { passive: true });
    return () => removeEventListener("scroll", scrolled);
  }, []);
  useEffect(() => { if (growing) atEnd.current = true; }, [growing]);
  useLayoutEffect(() => {
    const versions = chat.messages.map(({ branches }) => branches?.at);
    const { id, versions: earlier } = before.current;
    before.current = { id: chat.id, versions };
    const switched = id === chat.id && versions.some((at, i) => i < earlier.length && at !== earlier[i]);
    if (switched && !growing) atEnd.current = false;
    if (shown && atEnd.current && chat.messages.length) scrollTo(0, document.documentElement.scrollHeight);
  });
}

function Nothing({ server, chat }) {
  return html`<div class="nothing">
    ${server.capabilities.embedded
      ? html`<p>Demo model: answers make no sense. Try <code>--model smollm2-135m</code></p>`
      : html`<p>The model is <b>${server.models[0].id}</b>, with a context of ${server.models[0].max_model_len} tokens.</p>`}
    <p class="quiet">${chat.mode === "chat" ? "Write a message" : "Write the beginning of a text"} below, or drop a text file here.</p>
  </div>`;
}

export function Thread({ chat, busy, shown, server }) {
  const { messages } = chat;
  const [extra, setExtra] = useState(0);
  useEnd(shown, chat, busy && messages.at(-1)?.answer?.state === "streaming");
  if (messages.length === 0) return html`<${Nothing} server=${server} chat=${chat} />`;
  const from = Math.max(0, messages.length - FIRST - extra);
  const last = messages.length - 1;
  return html`
    ${from > 0 && html`<p class="earlier"><button onClick=${() => setExtra(extra + MORE)}>
      Show ${Math.min(MORE, from)} of ${from} earlier messages</button></p>`}
    ${messages.slice(from).map((message, i) => {
      const index = from + i;
      return html`<${Message} key=${index} message=${message} index=${index} mode=${chat.mode} busy=${busy}
        live=${busy && index === last && message.answer?.state === "streaming"}
        again=${message.answer?.again} sent=${store.isSent(message) ? chat.sent : null} />`;
    })}`;
}
