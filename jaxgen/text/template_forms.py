"""List the forms of conversations that a chat template may not take, and the ways to try then. Host only, no jax.

A form is probed through the rewrites of the forms before it in FORMS, and a conversation is rewritten from the last
form to the first. So the first forms are about how one message is written, and the last ones about which messages
there are.
"""

from collections.abc import Mapping
from typing import Any

from jaxgen.text import conversation_places as places
from jaxgen.text import conversation_rewrites as rewrites
from jaxgen.text.conversation import Conversation, Message
from jaxgen.text.template_form import AS_IT_IS, LEFT_OUT, Form, FormRewrite

_A, _B, _C, _D, _E, _F, _G = (f"jaxgenprobe{letter}" for letter in "abcdefg")


def _said(role: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


def _call(name: str = "look", arguments: Any = None, call_id: str = "call00000") -> dict[str, Any]:
    function = {"name": name, "arguments": {"of": "it"} if arguments is None else arguments}
    return {"id": call_id, "type": "function", "function": function}


def _result(text: str, call_id: str = "call00000") -> dict[str, Any]:
    return _said("tool", text, name="look", tool_call_id=call_id)


def _talk(*messages: Message, **fields: Any) -> Conversation:
    return Conversation(messages, **fields)


def _parts(role: str) -> FormRewrite:
    return FormRewrite("as a list of parts", rewrites.content_as_parts(role))


_USER = FormRewrite("as a user's message", rewrites.as_role("user", of="system"))
_IN_USER = FormRewrite("in the user's next message", rewrites.system_in_user)
_JOINED = "as one message"
_AFTER_PROMPT = FormRewrite("after the generation prompt", rewrites.last_after_generation_prompt)
_FIRST = _said("user", _A)
_CALL = _said("assistant", "", tool_calls=[_call()])
_LONG = "call_2SWSR9Le7UXHxTMQ5Vj3kDGt"
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": _B, "description": "", "parameters": {"type": "object", "properties": {}}},
}

TOOLS = Form("tools", "tools", places.tools, _talk(_FIRST, tools=(_TOOL,)), field="tools")

HOW_ONE_IS_WRITTEN = (
    Form(
        "user",
        "messages of the role user",
        places.of_role("user"),
        _talk(_FIRST),
        (AS_IT_IS, _parts("user")),
        field=".role",
    ),
    Form(
        "assistant",
        "messages of the role assistant",
        places.answers,
        _talk(_FIRST, _said("assistant", _B), _said("user", _C)),
        (AS_IT_IS, _parts("assistant")),
        field=".role",
    ),
    Form(
        "user_twice",
        "messages of the user that follow one another",
        places.neighbours("user"),
        _talk(_FIRST, _said("user", _B), _said("assistant", _C), _said("user", _D), _said("user", _E)),
        (AS_IT_IS, FormRewrite(_JOINED, rewrites.joined("user"))),
        field=".role",
    ),
    Form(
        "assistant_twice",
        "messages of the assistant that follow one another",
        places.neighbours("assistant"),
        _talk(_FIRST, _said("assistant", _B), _said("assistant", _C), _said("user", _D)),
        (AS_IT_IS, FormRewrite(_JOINED, rewrites.joined("assistant"))),
        field=".role",
    ),
    Form(
        "assistant_first",
        "a message of the assistant before the user's first",
        places.assistant_first,
        _talk(_said("assistant", _A), _said("user", _B)),
        field=".role",
    ),
)

CALLS = (
    Form(
        "call",
        "tool calls",
        places.with_calls,
        _talk(_FIRST, _said("assistant", "", tool_calls=[_call(_B, {_C: _D})])),
        (
            FormRewrite("with their arguments as objects", rewrites.arguments_as_objects),
            FormRewrite("with their arguments as texts", rewrites.arguments_as_texts),
            FormRewrite("as text between <tool_call> tags", rewrites.calls_as_text),
        ),
        wrong=repr(_C),  # a Python dict, which is not JSON
        field=".tool_calls",
    ),
    Form(
        "cut_arguments",
        "arguments of calls that are not objects",
        places.with_cut_arguments,
        _talk(_FIRST, _said("assistant", "", tool_calls=[_call(arguments=f'{{"{_B}": "{_C}')])),
        (AS_IT_IS, FormRewrite("as empty objects", rewrites.without_cut_arguments)),
        field=".tool_calls",
    ),
    Form(
        "result",
        "messages of the role tool",
        places.of_role("tool"),
        _talk(_FIRST, _CALL, _result(_B), _said("assistant", _C), _said("user", _D)),
        (AS_IT_IS, _parts("tool")),
        field=".role",
    ),
    Form(
        "text_beside_calls",
        "the text of messages with calls",
        places.with_text_and_calls,
        _talk(
            _FIRST,
            _said("assistant", _B, tool_calls=[_call(_F)]),
            _result(_C),
            _said("assistant", _D),
            _said("user", _E),
        ),
        (
            AS_IT_IS,
            _parts("assistant"),
            FormRewrite("as a message before", rewrites.text_before_calls),
            FormRewrite(LEFT_OUT, rewrites.without_text_beside_calls),
        ),
        field=".content",
    ),
    Form(
        "several_calls",
        "messages with several calls",
        places.with_several_calls,
        _talk(
            _FIRST,
            _CALL | {"tool_calls": [_call(_B), _call(_C, call_id="call00001")]},
            _result(_D),
            _result(_E, "call00001"),
            _said("assistant", _F),
            _said("user", _G),
        ),
        (AS_IT_IS, FormRewrite("as a message for each call", rewrites.one_call_a_message)),
        field=".tool_calls",
    ),
    Form(
        "ids",
        "ids of calls other than nine letters and digits",
        places.with_long_ids,
        _talk(
            _FIRST,
            _CALL | {"tool_calls": [_call(_B, call_id=_LONG)]},
            _result(_C, _LONG),
            _said("assistant", _D),
            _said("user", _E),
        ),
        (AS_IT_IS, FormRewrite("as nine letters and digits", rewrites.short_ids)),
        field=".tool_calls",
    ),
    TOOLS,
)

WHO_SPEAKS = (
    Form(
        "system",
        "messages of the role system",
        places.of_role("system"),
        _talk(_said("system", _A), _said("user", _B), _said("assistant", _C), _said("user", _D)),
        (AS_IT_IS, _parts("system"), _IN_USER),
        field=".role",
    ),
    Form(
        "system_before_last_result",
        "system messages where a result of a call comes last",
        places.system_before_last("tool"),
        _talk(_said("system", _A), _said("user", _B), _CALL, _result(_C)),
        (AS_IT_IS, _IN_USER),
        field=".role",
    ),
    Form(
        "system_before_last_answer",
        "system messages where a message of the assistant comes last",
        places.system_before_last("assistant"),
        _talk(_said("system", _A), _said("user", _B), _said("assistant", _C)),
        (AS_IT_IS, _IN_USER),
        field=".role",
    ),
    Form(
        "system_alone",
        "a system message without any other",
        places.system_alone,
        _talk(_said("system", _A)),
        (AS_IT_IS, _USER),
        field=".role",
    ),
    Form(
        "system_twice",
        "several system messages at the beginning",
        places.several("system"),
        _talk(_said("system", _A), _said("system", _B), _said("user", _C)),
        (AS_IT_IS, FormRewrite(_JOINED, rewrites.joined("system"))),
        field=".role",
    ),
    Form(
        "later_system",
        "system messages after others",
        places.later("system"),
        _talk(_said("system", _A), _said("user", _B), _said("assistant", _C), _said("system", _D), _said("user", _E)),
        (
            AS_IT_IS,
            FormRewrite("as a user's message", rewrites.later_as_role("user", of="system")),
            FormRewrite("as part of the first", rewrites.system_to_front),
        ),
        field=".role",
    ),
    Form(
        "developer",
        "messages of the role developer",
        places.of_role("developer"),
        _talk(_said("developer", _A), _said("user", _B), _said("assistant", _C), _said("user", _D)),
        (AS_IT_IS, FormRewrite("as system messages", rewrites.as_role("system", of="developer"))),
        field=".role",
    ),
    Form(
        "developer_twice",
        "several developer messages at the beginning",
        places.several("developer"),
        _talk(_said("developer", _A), _said("developer", _B), _said("user", _C)),
        (AS_IT_IS, FormRewrite(_JOINED, rewrites.joined("developer"))),
        field=".role",
    ),
    Form(
        "later_developer",
        "developer messages after others",
        places.later("developer"),
        _talk(
            _said("system", _A), _said("developer", _B), _said("user", _C), _said("developer", _D), _said("user", _E)
        ),
        (AS_IT_IS, FormRewrite("as system messages", rewrites.later_as_role("system", of="developer"))),
        field=".role",
    ),
)

_BEGUN = _said("assistant", _B)
_THOUGHT = _said("assistant", f"<think>\n{_B}\n</think>\n\n{_C}")
_THINKING = _said("assistant", f"<think>\n{_B}")

WHAT_GOES_ON = (
    Form(
        "continued_system",
        "messages before a system message that is continued",
        places.system_going_on,
        _talk(_FIRST, _said("system", _B), goes_on=True),
        field="continue_final_message",
    ),
    Form(
        "continued",
        "a message that is continued",
        places.going_on(""),
        _talk(_FIRST, _BEGUN, goes_on=True),
        (AS_IT_IS, _AFTER_PROMPT),
        field="continue_final_message",
    ),
    Form(
        "continued_thought",
        "a message that is continued after its reasoning",
        places.going_on("</think>"),
        _talk(_FIRST, _THOUGHT, goes_on=True),
        (AS_IT_IS, _AFTER_PROMPT),
        wrong="</think>.*</think>",
        field="continue_final_message",
    ),
    Form(
        "continued_thinking",
        "a message that is continued within its reasoning",
        places.going_on("^(?!.*</think>).*<think>"),
        _talk(_FIRST, _THINKING, goes_on=True),
        (AS_IT_IS, _AFTER_PROMPT),
        wrong="</think>",  # the template has closed thoughts of its own before
        field="continue_final_message",
    ),
)

FORMS = (*HOW_ONE_IS_WRITTEN, *CALLS, *WHO_SPEAKS, *WHAT_GOES_ON)
