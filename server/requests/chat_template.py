"""Render conversations to text with the model's own Jinja template, in a sandbox."""

import json
import logging
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.core.model_info import ChatFormat
from jaxgen.server.errors import bad_request
from jaxgen.server.log import frames
from jaxgen.server.requests.chat_messages import ArgumentsForm, for_template
from jaxgen.server.requests.prompts import Prompt, PromptReader
from jaxgen.server.requests.render_limit import render_limit
from jaxgen.server.schema.chat import Conversation
from jaxgen.text.quiet import quiet_transformers

logger = logging.getLogger(__name__)

MAX_SECONDS = 5.0
"""Longest time that a template may render; 1,000 messages take some 5 ms."""

_NO_ARGUMENTS = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversations",
    "documents",
    "messages",
    "return_assistant_tokens_mask",
    "tools",
}
"""Arguments of the template, or of transformers, that chat_template_kwargs may not set."""

_HI = {"role": "user", "content": "Hi"}
_PROBE = "jaxgen_probe"
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}},
}

type ForTemplate = Sequence[dict[str, Any]]


class ChatTemplate:
    """A chat template, rendered by transformers in its sandbox with its helpers (``raise_exception``,
    ``strftime_now``)."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def warm_up(self) -> None:
        """Import the renderer, which takes about a second, and compile the template; log an error of the template."""
        try:
            self._render([_HI], {})
        except Exception as error:  # a template may raise anything
            logger.warning("the chat template does not render a first message of a user: %s", _reason(error))

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows the tools that it is given."""
        try:
            return _PROBE in self._render([_HI], {"tools": [_PROBE_TOOL]})
        except Exception as error:  # a template may raise anything
            logger.warning("the chat template does not render tools: %s", _reason(error))
            return False

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether the template takes arguments of calls as objects and writes their JSON itself; most do."""
        as_object = self._renders_call({_PROBE: 1})
        if as_object is None:
            return self._renders_call(json.dumps({_PROBE: 1})) is None
        return repr(_PROBE) not in as_object  # else the template writes a Python dict, not JSON

    @cached_property
    def _takes_texts(self) -> bool:
        """Whether the template that takes arguments as objects takes a text, as of a call that was cut, as well."""
        return self._renders_call("{") is not None

    def _renders_call(self, arguments: Any) -> str | None:
        call = {"id": "call00000", "type": "function", "function": {"name": _PROBE, "arguments": arguments}}
        try:
            return self._render([_HI, {"role": "assistant", "content": "", "tool_calls": [call]}], {})
        except Exception:  # a template may raise anything; a caller who sends calls gets the error
            return None

    def render(self, body: Conversation, tools: ForTemplate = ()) -> str:
        """Render the messages, with special tokens. Raises ApiError 400 where the template fails."""
        if body.continue_final_message and body.add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt exclude each other: the last message goes on, or a "
                "new one begins.",
                "add_generation_prompt",
            )
        going_on = bool(body.continue_final_message)
        begins = not going_on if body.add_generation_prompt is None else body.add_generation_prompt
        options = dict(body.chat_template_kwargs or {})
        if reserved := options.keys() & _NO_ARGUMENTS:
            raise bad_request(
                f"chat_template_kwargs: {min(reserved)!r} is the server's to set.", "chat_template_kwargs"
            )
        options |= {"add_generation_prompt": begins, "continue_final_message": going_on}
        if tools:
            if not self.takes_tools:
                raise bad_request("tools: this model's chat template does not show tools to the model.", "tools")
            options["tools"] = list(tools)
        given = body.messages or ()
        objects = any(message.calls for message in given) and self._takes_objects
        messages = for_template(given, ArgumentsForm(objects, texts=not objects or self._takes_texts))
        try:
            return self._render(messages, options)
        except Exception as error:  # a template may raise anything, on purpose or not
            if _is_for_callers(error):
                reason = f"The chat template refuses these messages: {_reason(error)}."
            else:
                logger.warning("the chat template failed by %s\n%s", type(error).__name__, frames(error))
                reason = f"The chat template fails on these messages ({type(error).__name__})."
            raise bad_request(reason, "messages") from error

    def _render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        # Not at the top of the file: the import takes about a second, and only conversations need it.
        quiet_transformers()
        from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

        fields: dict[str, Any] = {**self._chat.special_tokens, **options}
        template = self._chat.template_for(tools="tools" in options)
        with render_limit(_compile_jinja_template(template), MAX_SECONDS):
            rendered: Any = render_jinja_template([messages], chat_template=template, **fields)
        text = str(rendered[0][0])  # it returns texts and spans in them
        text.encode()  # raises for a lone surrogate, which no tokenizer takes
        return text


class Conversations:
    """Turns conversations into prompts, if the model has a chat template."""

    def __init__(self, engine: EngineClient, prompts: PromptReader) -> None:
        self._prompts = prompts
        chat = engine.model.chat
        self._template = None if chat is None else ChatTemplate(chat)
        if self._template is not None:
            prompts.run_aside(self._template.warm_up)

    def with_reader(self, prompts: PromptReader) -> "Conversations":
        """Return the same, with another reader of the rendered texts."""
        made = copy(self)
        made._prompts = prompts
        return made

    async def read(
        self, body: Conversation, max_tokens: int, tools: ForTemplate = (), keep: int | None = None
    ) -> Prompt:
        """Return the prompt of a conversation that shows ``tools``; ``keep``: its last tokens, or all.

        Raises ApiError 400: no template, no messages, refused by the template, or too long with ``max_tokens``.
        """
        template, messages = self._template, body.messages
        if template is None:
            raise bad_request(
                "This model has no chat template, so it takes no conversations: use /v1/completions, or start the "
                "server with --chat-template FILE.",
                "messages",
            )
        if not messages:
            raise bad_request("messages must have one message at least.", "messages")
        length = len(body.model_dump_json(include={"messages", "chat_template_kwargs"})) + len(json.dumps(tools))
        return await self._prompts.read_text(
            lambda: template.render(body, tools),
            length,
            special=False,
            field="messages",
            max_tokens=max_tokens,
            keep=keep,
        )


def _is_for_callers(error: Exception) -> bool:
    """Whether the error is a refusal of the template's author, of the sandbox, or of a limit."""
    from jinja2 import TemplateError

    limits = (TimeoutError, MemoryError, RecursionError, OverflowError, UnicodeEncodeError)
    return isinstance(error, (TemplateError, *limits))


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
