"""Choose the parsers of a model's answers: by name, or by what its chat template shows."""

import re
from dataclasses import dataclass

from jaxgen.core.errors import ConfigError
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.thinking import CHANNEL_MARKS, THINK_MARKS, ThinkMarks

AUTO, NONE = "auto", "none"
HARMONY_CALLS, HARMONY_REASONING = "openai", "openai_gptoss"
QWEN3, DEEPSEEK_R1, GEMMA4 = "qwen3", "deepseek_r1", "gemma4"

TOOL_SIGNS = {HARMONY_CALLS: r"<\|channel\|>.*<\|message\|>", **{name: signed.sign for name, signed in FORMATS.items()}}
"""Regular expressions that find the formats of calls in chat templates; the first that fits decides."""

REASONING_SIGNS = {
    HARMONY_REASONING: TOOL_SIGNS[HARMONY_CALLS],
    GEMMA4: r"<\|channel>",
    QWEN3: r"<think>",
    DEEPSEEK_R1: r"</think>",
}
"""As TOOL_SIGNS, of reasoning. A template that only takes ``</think>`` away is of a model that begins by thinking."""

TOOL_ALIASES = {"harmony": HARMONY_CALLS, "qwen3_coder": "qwen3_xml", "glm47": "glm45"}
REASONING_ALIASES = {"harmony": HARMONY_REASONING, "glm45": QWEN3}
"""Further names of parsers, as others call them."""

TOOL_PARSERS = (AUTO, NONE, *TOOL_SIGNS, *TOOL_ALIASES)
REASONING_PARSERS = (AUTO, NONE, *REASONING_SIGNS, *REASONING_ALIASES)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The names of the parsers of a model's answers; None: there are no calls, or no reasoning, to be read."""

    tools: str | None
    reasoning: str | None

    @property
    def is_harmony(self) -> bool:
        return self.tools == HARMONY_CALLS or self.reasoning == HARMONY_REASONING

    @property
    def marks(self) -> ThinkMarks:
        """The marks around reasoning, where it is not in channels of harmony."""
        return CHANNEL_MARKS if self.reasoning == GEMMA4 else THINK_MARKS


def answer_format(template: str | None, tool_template: str | None, tools: str, reasoning: str) -> AnswerFormat:
    """Return the format of the answers of a model with these templates; None: it has none.

    ``tools``, ``reasoning``: of TOOL_PARSERS and REASONING_PARSERS. Harmony goes with itself alone: where the one is
    named, the other is not recognised as something else. Raises ConfigError as ``check_parsers`` does.
    """
    check_parsers(tools, reasoning)
    tools, reasoning = TOOL_ALIASES.get(tools, tools), REASONING_ALIASES.get(reasoning, reasoning)
    found_tools = recognised(tool_template, TOOL_SIGNS) if tools == AUTO else tools
    found_reasoning = recognised(template, REASONING_SIGNS) if reasoning == AUTO else reasoning
    if tools == AUTO and reasoning not in (AUTO, NONE) and _mixed(found_tools, found_reasoning):
        found_tools = HARMONY_CALLS if found_reasoning == HARMONY_REASONING else None
    elif reasoning == AUTO and _mixed(found_tools, found_reasoning):
        found_reasoning = HARMONY_REASONING if found_tools == HARMONY_CALLS else None
    return AnswerFormat(*(None if name == NONE else name for name in (found_tools, found_reasoning)))


def check_parsers(tools: str, reasoning: str) -> None:
    """Raise ConfigError where a parser is unknown, or two that are named do not go together."""
    for field, name, known in (
        ("tool_call_parser", tools, TOOL_PARSERS),
        ("reasoning_parser", reasoning, REASONING_PARSERS),
    ):
        if name not in known:
            raise ConfigError(f"{field} must be one of {', '.join(known)}, not {name!r}")
    tools, reasoning = TOOL_ALIASES.get(tools, tools), REASONING_ALIASES.get(reasoning, reasoning)
    if AUTO not in (tools, reasoning) and _mixed(tools, reasoning):
        raise ConfigError(
            f"tool_call_parser and reasoning_parser: {HARMONY_CALLS} and {HARMONY_REASONING} must be used together, "
            f"not {tools} with {reasoning}"
        )


def recognised(template: str | None, signs: dict[str, str]) -> str | None:
    """Return the name of the first sign that a chat template shows; None where it shows none of these."""
    if template is None:
        return None
    return next((name for name, sign in signs.items() if re.search(sign, template, re.DOTALL)), None)


def _mixed(tools: str | None, reasoning: str | None) -> bool:
    """Whether one of the two is harmony's, and the other is of another format."""
    other = {None, NONE}
    return (tools == HARMONY_CALLS and reasoning not in other | {HARMONY_REASONING}) or (
        reasoning == HARMONY_REASONING and tools not in other | {HARMONY_CALLS}
    )
