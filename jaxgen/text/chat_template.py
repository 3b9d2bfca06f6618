"""Render conversations to text with a model's Jinja template, in a sandbox. Host only, no jax."""

import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.model_info import ChatFormat
from jaxgen.text.conversation import Conversation, with_tail
from jaxgen.text.quiet import quiet_transformers
from jaxgen.text.render_limit import render_limit
from jaxgen.text.template_forms import FORMS, TOOLS
from jaxgen.text.template_probe import REFUSED, SHOWN, TemplateProbe, in_words, reason_of

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

_ANSWER = "jaxgenanswer"

type ForTemplate = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """A chat template, rendered by transformers in its sandbox with its helpers (``raise_exception``,
    ``strftime_now``). What it does not take or show of a conversation is found by probes, and written otherwise."""

    def __init__(self, chat: ChatFormat, seconds: float | None = None) -> None:
        """``seconds``: that one rendering may take; None: MAX_SECONDS."""
        self._chat = chat
        self._seconds = seconds
        self._probe = TemplateProbe(partial(self._write, arguments={}))

    def warm_up(self) -> None:
        """Import the renderer, which takes about a second, probe the template, and log what it does not take."""
        findings = self._probe.findings(tools=False)
        first = findings[FORMS[0]]
        if first.outcome == REFUSED:
            logger.warning("the chat template does not render a first message of a user: %s", first.reason)
            return
        both = {**findings, **self._probe.findings(tools=self.takes_tools)}
        if differences := in_words(both):
            logger.debug("for the chat template conversations are written otherwise: %s", differences)

    @property
    def takes_tools(self) -> bool:
        """Whether the template shows the tools that it is given."""
        return self._probe.finding(TOOLS, tools=True).outcome == SHOWN

    def names(self, argument: str, *, tools: bool) -> bool:
        """Whether the template, or the one for conversations with tools, names an argument."""
        return re.search(rf"\b{re.escape(argument)}\b", self._chat.template_for(tools=tools)) is not None

    def after_answer(self) -> str:
        """Return what the template writes after an answer that is the last message; empty: it shows no answers."""
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _ANSWER}]
        try:
            text = self.render(messages, add_generation_prompt=False)
        except RequestRefusedError:
            return ""
        return text.rpartition(_ANSWER)[2]

    def findings(self) -> dict[str, dict[str, str] | None]:
        """Return what becomes of each form of a conversation, by its name; with tools: None if it shows none."""
        plain, with_tools = (
            {form.name: finding.description for form, finding in self._probe.findings(tools=tools).items()}
            for tools in (False, True)
        )
        return {"without_tools": plain, "with_tools": with_tools if self.takes_tools else None}

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

        ``add_generation_prompt`` None: true unless the last message continues. ``arguments``: chat_template_kwargs.
        Raises RequestRefusedError that names the field, also where the template fails.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestRefusedError(
                "continue_final_message and add_generation_prompt exclude each other: the answer continues the last "
                "message, or it is a new one",
                "add_generation_prompt",
            )
        options = dict(arguments or {})
        if reserved := options.keys() & _NO_ARGUMENTS:
            raise RequestRefusedError(
                f"chat_template_kwargs must not have {min(reserved)!r}: the server sets it",
                "chat_template_kwargs",
            )
        begins = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        conversation = Conversation(tuple(messages), tuple(tools), begins, continue_final_message)
        try:
            return self._write(self._probe.fitted(conversation), options)
        except RequestRefusedError:
            raise
        except Exception as error:  # a template may raise anything, on purpose or not
            raise self._refusal(conversation, error) from error

    def _refusal(self, conversation: Conversation, error: Exception) -> RequestRefusedError:
        """Return what a caller is told of an error of the template."""
        if conversation.goes_on and str(error).startswith("continue_final_message"):  # as transformers says it
            return RequestRefusedError(
                "continue_final_message: the chat template does not show the end of the last message, so it cannot go "
                "on there",
                "continue_final_message",
            )
        if not _is_for_callers(error):  # its message may quote a prompt
            lines = "".join(traceback.format_tb(error.__traceback__))
            logger.warning("the chat template failed by %s\n%s", type(error).__name__, lines)
            return RequestRefusedError(
                f"The chat template fails on these messages ({type(error).__name__})", "messages"
            )
        reason = f"The chat template refuses these messages: {reason_of(error)}"
        if refused := self._probe.refused(conversation):
            form, place = refused
            return RequestRefusedError(
                f"{reason} ({form.param(place)}: it takes no {form.description})", form.param(place)
            )
        return RequestRefusedError(reason, "messages")

    def _write(self, conversation: Conversation, arguments: Mapping[str, Any]) -> str:
        """Return the text of a conversation as it is. Raises what the template raises."""
        options = {
            **arguments,
            "add_generation_prompt": conversation.begins,
            "continue_final_message": conversation.goes_on,
        }
        if conversation.tools:
            options["tools"] = list(conversation.tools)
        text = self._render(conversation.messages, options)
        return with_tail(text, conversation.tail) if conversation.tail else text

    def _render(self, messages: ForTemplate, options: dict[str, Any]) -> str:
        # Not at the top of the file: the import takes about a second, and only conversations need it.
        quiet_transformers()
        from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

        fields: dict[str, Any] = {**self._chat.special_tokens, **options}
        template = self._chat.template_for(tools="tools" in options)
        conversations: Any = [messages]
        seconds = MAX_SECONDS if self._seconds is None else self._seconds
        with render_limit(_compile_jinja_template(template), seconds):
            rendered: Any = render_jinja_template(conversations, chat_template=template, **fields)
        text = str(rendered[0][0])  # it returns texts and spans in them
        text.encode()  # raises for a lone surrogate, which no tokenizer takes
        return text


def _is_for_callers(error: Exception) -> bool:
    """Whether the error is a refusal of the template's author, of the sandbox, or of a limit."""
    from jinja2 import TemplateError

    limits = (TimeoutError, MemoryError, RecursionError, OverflowError, UnicodeEncodeError)
    return isinstance(error, (TemplateError, *limits))
