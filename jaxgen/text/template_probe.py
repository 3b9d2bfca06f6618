"""Find out which forms of conversations a chat template shows, and write conversations so that it shows them.

Nobody compares a prompt with its messages, and templates leave out forms that they do not know: a role, tool calls, or
text next to tool calls. So each form of ``template_forms`` is rendered once, with words that no template has.
Where these are missing, or the template fails, other ways to write the form are tried. Host only, no jax.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from time import monotonic

from jaxgen.core.errors import RequestRefusedError
from jaxgen.text.conversation import Conversation
from jaxgen.text.conversation_rewrites import arguments_as_objects, unchanged
from jaxgen.text.template_form import AS_IT_IS, Form, FormRewrite, signs_of
from jaxgen.text.template_forms import FORMS, TOOLS

PROBE_SECONDS = 10.0
"""Longest time for all probes of a template; those of usual templates take some 5 ms together."""

PROBE_CHARACTERS = 2**20
"""Longest text of a probe, which has a few words; a template that writes more is not probed further."""


class ProbeResult(StrEnum):
    """The outcome of probing a template with a form.

    SHOWN: it shows all words. DROPPED: it leaves words out. REFUSED: it raises. BLOCKED: the form has another one in it
    that is not shown. UNKNOWN: the template is too slow, or writes too much, to be probed.
    """

    SHOWN = "shown"
    DROPPED = "dropped"
    REFUSED = "refused"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


SHOWN, DROPPED, REFUSED, BLOCKED, UNKNOWN = ProbeResult
_IN_WORDS = {
    DROPPED: "refused: the template leaves words out",
    BLOCKED: "refused: another form in it is",
    UNKNOWN: "not known: the template takes too long, or writes too much",
}
_ANY_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}},
}

type Write = Callable[[Conversation], str]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of probing a form: SHOWN in this ``way``, or REFUSED for this ``reason``, or another outcome."""

    outcome: ProbeResult
    way: FormRewrite = AS_IT_IS
    reason: str = ""

    @property
    def description(self) -> str:
        """The finding in words."""
        if self.outcome == SHOWN:
            return self.way.becomes
        return f"refused: {self.reason}" if self.outcome == REFUSED else _IN_WORDS[self.outcome]


_NOT_PROBED = Finding(UNKNOWN, FormRewrite("", AS_IT_IS.rewrite))


class TemplateProbe:
    """Probes a template when a form is first met, and keeps what it finds. Threads may share it."""

    def __init__(self, write: Write) -> None:
        """``write``: renders a conversation as it is; it raises anything, TimeoutError where that takes too long."""
        self._write = write
        self._findings: dict[tuple[str, bool], Finding] = {}
        self._left = PROBE_SECONDS

    def fitted(self, conversation: Conversation) -> Conversation:
        """Return the conversation as the template shows all of it.

        Raises RequestRefusedError that names the first field whose words the template would leave out.
        """
        tools = bool(conversation.tools)
        for form in FORMS:
            if self._known(form, tools=tools).outcome == SHOWN or (place := form.place(conversation)) is None:
                continue
            outcome = self.finding(form, tools=tools).outcome
            if outcome == DROPPED or (form is TOOLS and outcome in (REFUSED, BLOCKED)):
                raise RequestRefusedError(_left_out(form, place), form.param(place))
        return self._rewritten(conversation, FORMS)

    def refused(self, conversation: Conversation) -> tuple[Form, int] | None:
        """Return the first form of the conversation that the template refuses however it is written, and its place.

        None: there is no such form, or the template refuses everything.
        """
        tools = bool(conversation.tools)
        if self.finding(FORMS[0], tools=tools).outcome != SHOWN:
            return None
        return next(
            (
                (form, place)
                for form, place in self._forms_of(conversation)
                if self.finding(form, tools=tools).outcome == REFUSED
            ),
            None,
        )

    def findings(self, *, tools: bool) -> dict[Form, Finding]:
        """Return what the template does with each form in conversations with tools, or without."""
        forms = [form for form in FORMS if tools or form is not TOOLS]
        return {form: self.finding(form, tools=tools) for form in forms}

    def finding(self, form: Form, *, tools: bool) -> Finding:
        """Return what the template does with a form in conversations with tools, or without."""
        key = (form.name, tools)
        if key not in self._findings:
            self._findings[key] = self._probe(form, tools=tools)
        return self._findings[key]

    def _known(self, form: Form, *, tools: bool) -> Finding:
        """Return what is known of a form without a probe, which spares the look for it in most conversations."""
        return self._findings.get((form.name, tools), _NOT_PROBED)

    def _forms_of(self, conversation: Conversation) -> Iterator[tuple[Form, int]]:
        for form in FORMS:
            if (place := form.place(conversation)) is not None:
                yield form, place

    def _rewritten(self, conversation: Conversation, forms: tuple[Form, ...]) -> Conversation:
        tools = bool(conversation.tools)
        for form in reversed(forms):
            as_it_is = self._known(form, tools=tools).way is AS_IT_IS
            if not as_it_is and form.place(conversation) is not None:
                conversation = self.finding(form, tools=tools).way.rewrite(conversation)
        return conversation

    def _probe(self, form: Form, *, tools: bool) -> Finding:
        probe = replace(form.probe, tools=form.probe.tools or (_ANY_TOOL,)) if tools else form.probe
        earlier = FORMS[: FORMS.index(form)]
        tried: list[Finding] = []
        for way in form.ways:
            right, finding = self._try(way, probe, form.wrong, earlier)
            if right:
                return finding
            tried.append(finding)
        misread = next((finding for finding in tried if finding.outcome == SHOWN), None)
        return misread or tried[0]

    def _try(
        self, way: FormRewrite, probe: Conversation, wrong: str | None, earlier: tuple[Form, ...]
    ) -> tuple[bool, Finding]:
        """Return whether the template shows the probe in this way and reads it rightly, and the finding."""
        rewritten = way.rewrite(probe)
        for form in earlier:
            outcome = (
                SHOWN if form.place(rewritten) is None else self.finding(form, tools=bool(rewritten.tools)).outcome
            )
            if outcome != SHOWN:
                return False, Finding(UNKNOWN if outcome == UNKNOWN else BLOCKED)
        wanted = signs_of(rewritten)
        if self._left <= 0:
            return False, Finding(UNKNOWN)
        began = monotonic()
        try:
            text = self._write(self._rewritten(rewritten, earlier))
        except TimeoutError:
            self._left = 0.0  # one that takes so long for a few words is not asked again
            return False, Finding(UNKNOWN)
        except Exception as error:  # a template may raise anything
            return False, Finding(REFUSED, reason=reason_of(error))
        finally:
            self._left -= monotonic() - began
        if len(text) > PROBE_CHARACTERS:
            self._left = 0.0
            return False, Finding(UNKNOWN)
        if not all(sign in text for sign in wanted):
            return False, Finding(DROPPED)
        return wrong is None or not re.search(wrong, text, re.DOTALL), Finding(SHOWN, way)


def in_words(findings: Mapping[Form, Finding]) -> str:
    """Return a sentence about the forms that are not written as they are; empty: all are."""
    parts = [f"{form.description} {finding.way.becomes}" for form, finding in findings.items() if _rewrites(finding)]
    if dropped := [form.description for form, finding in findings.items() if finding.outcome == DROPPED]:
        parts.append(f"not shown, so answered with 400: {', '.join(dropped)}")
    if refused := [
        f"{form.description} ({finding.reason})" for form, finding in findings.items() if finding.outcome == REFUSED
    ]:
        parts.append(f"refused by it: {', '.join(refused)}")
    if any(finding.outcome == UNKNOWN for finding in findings.values()):
        parts.append("it takes too long, or writes too much, to be probed")
    return "; ".join(parts)


def _rewrites(finding: Finding) -> bool:
    return finding.outcome == SHOWN and finding.way.rewrite not in (unchanged, arguments_as_objects)


def reason_of(error: Exception) -> str:
    """Return the first line of what an error of a template says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _left_out(form: Form, place: int) -> str:
    if form is TOOLS:
        return "tools: this model's chat template does not show tools to the model"
    message = f"this model's chat template leaves words out of {form.description}, which the model would not read"
    return f"{form.param(place)}: {message}"
