"""Render conversations to text with a model's Jinja template, in a sandbox. Host only, no jax."""

import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.model_info import ChatFormat
from jaxgen.text.quiet import quiet_transformers
from jaxgen.text.render_limit import render_limit

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

type ForTemplate = Sequence[Mapping[str, Any]]


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
    def takes_objects(self) -> bool:
        """Whether the template takes arguments of calls as objects and writes their JSON itself; most do."""
        as_object = self._renders_call({_PROBE: 1})
        if as_object is None:
            return self._renders_call(json.dumps({_PROBE: 1})) is None
        return repr(_PROBE) not in as_object  # else the template writes a Python dict, not JSON

    @cached_property
    def takes_texts(self) -> bool:
        """Whether the template that takes arguments as objects takes a text, as of a call that was cut, as well."""
        return self._renders_call("{") is not None

    def _renders_call(self, arguments: Any) -> str | None:
        call = {"id": "call00000", "type": "function", "function": {"name": _PROBE, "arguments": arguments}}
        try:
            return self._render([_HI, {"role": "assistant", "content": "", "tool_calls": [call]}], {})
        except Exception:  # a template may raise anything; a caller who sends calls gets the error
            return None

    def render(
        self,
        messages: ForTemplate,
        *,
        tools: ForTemplate = (),
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of the messages, with special tokens.

        ``add_generation_prompt`` None: unless the last message goes on. ``arguments``: chat_template_kwargs. Raises
        RequestRefusedError that names the field, also where the template fails.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestRefusedError(
                "continue_final_message and add_generation_prompt exclude each other: the last message goes on, or a "
                "new one begins",
                "add_generation_prompt",
            )
        options = dict(arguments or {})
        if reserved := options.keys() & _NO_ARGUMENTS:
            raise RequestRefusedError(
                f"chat_template_kwargs: {min(reserved)!r} is not the template's to be told there",
                "chat_template_kwargs",
            )
        begins = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        options |= {"add_generation_prompt": begins, "continue_final_message": continue_final_message}
        if tools:
            if not self.takes_tools:
                raise RequestRefusedError("tools: this model's chat template does not show tools to the model", "tools")
            options["tools"] = list(tools)
        try:
            return self._render(messages, options)
        except Exception as error:  # a template may raise anything, on purpose or not
            if _is_for_callers(error):
                reason = f"The chat template refuses these messages: {_reason(error)}"
            else:  # its message may quote a prompt
                lines = "".join(traceback.format_tb(error.__traceback__))
                logger.warning("the chat template failed by %s\n%s", type(error).__name__, lines)
                reason = f"The chat template fails on these messages ({type(error).__name__})"
            raise RequestRefusedError(reason, "messages") from error

    def _render(self, messages: ForTemplate, options: dict[str, Any]) -> str:
        # Not at the top of the file: the import takes about a second, and only conversations need it.
        quiet_transformers()
        from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

        fields: dict[str, Any] = {**self._chat.special_tokens, **options}
        template = self._chat.template_for(tools="tools" in options)
        conversations: Any = [messages]
        with render_limit(_compile_jinja_template(template), MAX_SECONDS):
            rendered: Any = render_jinja_template(conversations, chat_template=template, **fields)
        text = str(rendered[0][0])  # it returns texts and spans in them
        text.encode()  # raises for a lone surrogate, which no tokenizer takes
        return text


def _is_for_callers(error: Exception) -> bool:
    """Whether the error is a refusal of the template's author, of the sandbox, or of a limit."""
    from jinja2 import TemplateError

    limits = (TimeoutError, MemoryError, RecursionError, OverflowError, UnicodeEncodeError)
    return isinstance(error, (TemplateError, *limits))


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
