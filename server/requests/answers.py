"""Resolve how the answers of a request are read: reasoning, content and tool calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from jaxgen.client import EngineClient
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.sampling_params import Grammar
from jaxgen.server.config import Answers
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.requests.tools import Tools, ToolUse
from jaxgen.server.schema.chat import ChatRequest
from jaxgen.server.tool_calls.grammar import after_thinking, either, harmony_answer
from jaxgen.server.tool_calls.harmony import MARKS, NAMES, HarmonyParser
from jaxgen.server.tool_calls.parser import MessageParser, ToolParser
from jaxgen.server.tool_calls.recognised import DEEPSEEK_R1, AnswerFormat, answer_format
from jaxgen.server.tool_calls.thinking import ThinkParser
from jaxgen.text.tokenizer import Tokenizer

_TAIL = 64
"""Tokens at a prompt's end in which the marks of reasoning are looked for, if only white space comes after them."""


def format_of(model: ModelInfo, settings: Answers) -> AnswerFormat:
    """Return the format of the model's answers, by its chat template or as configured."""
    chat = model.chat
    plain, with_tools = (None, None) if chat is None else (chat.template_for(tools=yes) for yes in (False, True))
    return answer_format(plain, with_tools, settings.tool_call_parser, settings.reasoning_parser)


@dataclass(frozen=True)
class AnswerReading:
    """The way to read the answers to one prompt. ``tools``: the tools that may be called; None: none.

    ``shown``: texts that stand for tokens that decoding else leaves out. ``include_reasoning``: whether the caller gets
    the reasoning.
    """

    form: AnswerFormat
    tokenizer: Tokenizer
    prompt: Prompt
    tools: ToolUse | None
    shown: Mapping[int, str]
    include_reasoning: bool = True
    continued: str = ""
    """The text of the message that the answer continues, which ends the prompt; empty: it begins a message."""

    def parser(self, name: str) -> MessageParser | None:
        """Return a new parser for one answer; None: it is content as a whole. ``name``: of the choice."""
        tools, form = self.tools, self.form
        if form.is_harmony:
            names = {} if tools is None else tools.schemas
            most, reasoning = None if tools is None else tools.most, form.reasoning is not None
            harmony = HarmonyParser(names, most, reasoning=reasoning, name=name)
            harmony.begin(self._opening)
            return harmony
        calls = None
        if tools is not None and tools.kind is not None:
            calls = ToolParser(tools.kind, tools.schemas, tools.most, only_calls=tools.required, name=name)
        if form.reasoning is None:
            return calls
        interrupts = "" if tools is None or tools.kind is None else tools.kind.interrupts
        return ThinkParser(calls, form.marks, inside=self._inside, interrupts=interrupts)

    def grammar(self, asked: Grammar | None) -> Grammar | None:
        """Return the grammar of the whole answer, whose content has the grammar in Lark that was ``asked`` for, if
        any."""
        tools = self.tools
        calls = None if tools is None else tools.grammar
        if tools is not None and tools.required:
            asked = None
        if asked is None and calls is None:
            return None
        source = "tools" if asked is None else asked.source
        if self.form.is_harmony and not self._begins:
            return asked
        content = None if asked is None else asked.text
        if self.form.is_harmony:
            return Grammar(harmony_answer(content, calls, self.tokenizer.added_token), source)
        if content is None or calls is None:
            text = (calls or "") if content is None else content
        else:
            text = either(content, calls)
        if self.form.reasoning is not None and (self._inside or not self._closed):
            text = after_thinking(text, self.form.marks, self.tokenizer.added_token, inside=self._inside)
        return Grammar(text, source)

    @cached_property
    def _opening(self) -> str:
        """The part of the answer's message in harmony that the prompt has: the text after the last ``<|start|>``."""
        tokens, start = self.prompt.tokens, self.tokenizer.added_token(NAMES[0])
        length = sum(1 for _ in takewhile(lambda token: token != start, reversed(tokens)))
        text = self.tokenizer.completion_text(shown=self.shown)
        return "".join(map(text.feed, tokens[len(tokens) - length :])) if length < len(tokens) else ""

    @property
    def _begins(self) -> bool:
        """Whether an answer in harmony begins with the header of its first message."""
        return not any(mark in self._opening for mark in MARKS.values())

    @cached_property
    def _mark(self) -> str:
        """The mark of reasoning with which the prompt ends, before white space; empty: there is none.

        If the answer continues a message, it is the last mark in the message. A message without one is content.
        """
        begin, end, _ = self.form.marks
        if self.continued:
            last = max((begin, end), key=self.continued.rfind)
            return last if last in self.continued else end
        tail = "".join(map(self.tokenizer.token_text, self.prompt.tokens[-_TAIL:])).rstrip()
        return next((mark for mark in (begin, end) if tail.endswith(mark)), "")

    @property
    def _inside(self) -> bool:
        """Whether the answer begins within reasoning."""
        return self._mark == self.form.marks.begin or (self.form.reasoning == DEEPSEEK_R1 and not self._mark)

    @property
    def _closed(self) -> bool:
        """Whether the prompt has ended the reasoning."""
        return self._mark == self.form.marks.end


class AnswerReader:
    """Knows the format of the model's answers."""

    def __init__(self, engine: EngineClient, settings: Answers) -> None:
        form = format_of(engine.model, settings)
        token_of = engine.tokenizer.added_token
        if form.is_harmony and any(token_of(name) is None for name in NAMES):
            form = AnswerFormat(None, None)  # a template of another model's
        self._form = form
        self._tokenizer = engine.tokenizer
        self._marks = {token: MARKS[name] for name in NAMES if (token := token_of(name)) is not None}
        self.tools = Tools(form.tools, token_of)

    def reading(self, body: ChatRequest, prompt: Prompt, tools: ToolUse | None) -> AnswerReading:
        """Return how the answers to a conversation's prompt are read."""
        continued = body.messages[-1].text if body.continue_final_message and body.messages else ""
        return AnswerReading(
            self._form,
            self._tokenizer,
            prompt,
            tools,
            self._shown(tools),
            include_reasoning=body.include_reasoning is not False,
            continued=continued,
        )

    def _shown(self, tools: ToolUse | None) -> Mapping[int, str]:
        if self._form.is_harmony:
            return self._marks
        names = () if tools is None or tools.kind is None else tools.kind.markers
        if self._form.reasoning is not None:
            names = (*names, *self._form.marks.tokens)
        marks = {self._tokenizer.added_token(name): name for name in names}
        return {token: name for token, name in marks.items() if token is not None and self._tokenizer.is_special(token)}
