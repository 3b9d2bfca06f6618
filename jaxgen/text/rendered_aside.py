"""Render conversations in helper processes: a template is a program by the author of the model.

Jinja's sandbox bounds what it may access, and ``render_limit`` its loops. One operation (``10 ** 10 ** 8``) can still
take any time and memory; then its process ends.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.model_info import ChatFormat
from jaxgen.processes.helper import Helper, Target
from jaxgen.processes.helpers import for_conversations
from jaxgen.text import chat_template
from jaxgen.text.chat_template import ChatTemplate, ForTemplate
from jaxgen.text.quiet import quiet_transformers
from jaxgen.text.template_probe import PROBE_SECONDS

logger = logging.getLogger(__name__)

_GRACE = 1.0
"""Seconds beyond its own limit, by which a loop ends without its process."""

type Fields = dict[str, Any]


class AsideTemplate:
    """A chat template that helper processes render; it is as ChatTemplate otherwise."""

    def __init__(self, chat: ChatFormat) -> None:
        self._here = ChatTemplate(chat)
        self._target = Target(f"{__name__}:template_in_helper", lambda: (chat, chat_template.MAX_SECONDS))

    def names(self, argument: str, *, tools: bool) -> bool:
        """Whether the template, or the one for conversations with tools, names an argument."""
        return self._here.names(argument, tools=tools)

    def render(self, fields: Callable[[], tuple[ForTemplate, Fields]], caller: str, length: int) -> "Future[str]":
        """Return a future of the text of messages; ``fields`` returns them, and the options of ChatTemplate.render.

        ``length``: about their characters. Callers take turns. The future raises what ChatTemplate.render raises.
        Raises TooMuchWaitsError.
        """

        def work(helper: Helper) -> str:
            messages, options = fields()
            seconds = chat_template.MAX_SECONDS + _GRACE
            try:
                return str(helper.call(self._target, "render", messages, seconds=seconds, **options))
            except (TimeoutError, MemoryError) as error:
                raise RequestRefusedError(
                    f"The chat template refuses these messages: it takes too {_what(error)}", "messages"
                ) from error

        return for_conversations().submit(caller, work, length)

    def warm_up(self) -> None:
        """Begin to start a helper and to probe the template; what it does not take is logged."""
        self._begin("warm_up", PROBE_SECONDS)

    def findings(self) -> dict[str, dict[str, str] | None]:
        """Return what becomes of each form of a conversation, by its name; with tools: None if it shows none, or takes
        too long or too much memory to be asked."""
        return self._begin("findings", PROBE_SECONDS).result() or {"without_tools": None, "with_tools": None}

    def after_answer(self) -> str | None:
        """Return what the template writes after an answer that is the last message; empty: it shows no answers; None:
        it takes too long or too much memory to be asked."""
        after: str | None = self._begin("after_answer", chat_template.MAX_SECONDS).result()
        return after

    def _begin(self, method: str, seconds: float) -> "Future[Any]":
        def work(helper: Helper) -> Any:
            try:
                return helper.call(self._target, method, seconds=seconds + _GRACE)
            except (TimeoutError, MemoryError) as error:
                logger.warning("the chat template takes too %s for a few words", _what(error))
                return None

        return for_conversations().submit("", work)


def template_in_helper(chat: ChatFormat, seconds: float) -> ChatTemplate:
    """Return the template, one rendering of which may take some ``seconds``.

    Imports the renderer, which takes about a second, before anything is rendered.
    """
    quiet_transformers()
    import transformers.utils.chat_template_utils  # noqa: F401

    return ChatTemplate(chat, seconds)


def _what(error: Exception) -> str:
    return "long" if isinstance(error, TimeoutError) else "much memory"
