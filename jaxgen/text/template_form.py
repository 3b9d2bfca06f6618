"""Describe a form of conversations that a chat template may not take, and the ways to write it. Host only."""

import json
import re
from dataclasses import dataclass

from jaxgen.text.conversation import Conversation
from jaxgen.text.conversation_places import Place
from jaxgen.text.conversation_rewrites import Rewrite, unchanged

SIGN = re.compile(r"jaxgenprobe[a-g]")
"""The words of probes, which a template has to show."""


@dataclass(frozen=True, slots=True)
class FormRewrite:
    """A way to write a form: what becomes of it, in words, and the rewrite that does it."""

    becomes: str
    rewrite: Rewrite


AS_IT_IS = FormRewrite("as it is", unchanged)
LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A form of conversations. ``name`` is its key for programs, ``description`` its name in sentences.

    ``place``: the index of the first message that has it; None: none has. ``probe``: a conversation with it, each text
    of which is a SIGN. ``ways``: in order of preference. ``wrong``: a regular expression of what a template writes
    that misreads it. ``field``: what of the message it is, for errors.
    """

    name: str
    description: str
    place: Place
    probe: Conversation
    ways: tuple[FormRewrite, ...] = (AS_IT_IS,)
    wrong: str | None = None
    field: str = ""

    def param(self, place: int) -> str:
        """Return the name of the field of a request that has this form."""
        return self.field if self.field in ("tools", "continue_final_message") else f"messages.{place}{self.field}"


def signs_of(conversation: Conversation) -> set[str]:
    """Return the signs that a template has to show of a probe."""
    return set(SIGN.findall(json.dumps([conversation.messages, conversation.tools])))
