"""Turn conversations into prompts with the model's chat template."""

import asyncio
import json
from copy import copy
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.server.errors import bad_request, refusals
from jaxgen.server.requests.chat_messages import for_template
from jaxgen.server.requests.prompts import Prompt, PromptReader
from jaxgen.server.schema.base import UNSUPPORTED
from jaxgen.server.schema.chat import Conversation
from jaxgen.text.chat_template import ForTemplate
from jaxgen.text.named_templates import TEMPLATE_NAMES
from jaxgen.text.rendered_aside import AsideTemplate

NO_TEMPLATE = (
    "This model has no chat template, so it takes no conversations: use /v1/completions, or start the server with "
    f"--chat-template and a file, or one of jaxgen's own: {', '.join(TEMPLATE_NAMES)}."
)


EFFORT = "reasoning_effort"
"""The field, and the argument of templates by the same name."""


class Conversations:
    """Turns conversations into prompts, if the model has a chat template."""

    def __init__(self, engine: EngineClient, prompts: PromptReader) -> None:
        self._prompts = prompts
        chat = engine.model.chat
        self._template = None if chat is None else AsideTemplate(chat)
        if self._template is not None:
            self._template.warm_up()

    def findings(self) -> dict[str, dict[str, str] | None] | None:
        """Return what the template does with each form of conversations, by its name; None: there is no template."""
        return None if self._template is None else self._template.findings()

    def with_reader(self, prompts: PromptReader) -> "Conversations":
        """Return the same, with another reader of the rendered texts."""
        result = copy(self)
        result._prompts = prompts
        return result

    async def read(
        self, body: Conversation, max_tokens: int, tools: ForTemplate = (), keep: int | None = None, caller: str = ""
    ) -> Prompt:
        """Return the prompt of a conversation that shows ``tools``; ``keep``: its last tokens, or all.

        Raises ApiError 400: no template, no messages, refused by the template, or too long with ``max_tokens``.
        """
        template, messages = self._template, body.messages
        if template is None:
            raise bad_request(NO_TEMPLATE, "messages")
        if not messages:
            raise bad_request("messages must have at least one message.", "messages")
        length = len(body.model_dump_json(include={"messages", "chat_template_kwargs"})) + len(json.dumps(tools))
        with refusals("messages"):
            text = await asyncio.wrap_future(template.render(lambda: _fields(template, body, tools), caller, length))
        return await self._prompts.read_text(
            lambda: text, len(text), special=False, field="messages", max_tokens=max_tokens, keep=keep
        )


def _fields(template: AsideTemplate, body: Conversation, tools: ForTemplate) -> tuple[ForTemplate, dict[str, Any]]:
    """Return the messages of a conversation, and the options for the template. Raises ApiError 400."""
    return for_template(body.messages or ()), {
        "tools": tools,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": bool(body.continue_final_message),
        "arguments": {**_effort(template, body, with_tools=bool(tools)), **(body.chat_template_kwargs or {})},
    }


def _effort(template: AsideTemplate, body: Conversation, *, with_tools: bool) -> dict[str, str]:
    """Return the argument of the template that says how long the model is to reason, if the caller does.

    "none" asks for nothing that a template without such an argument does not do. Raises ApiError 400 for another value
    where the template names no such argument.
    """
    effort = body.reasoning_effort
    if effort in (None, "none"):
        return {}
    if not template.names(EFFORT, tools=with_tools):
        raise bad_request(
            f"{EFFORT}: this model's chat template has no levels of effort: send 'none', or leave it out (Codex: take "
            "model_reasoning_effort out of its configuration); another switch of a template is set in "
            "chat_template_kwargs.",
            EFFORT,
            UNSUPPORTED,
        )
    return {EFFORT: effort}
