"""What chat templates leave out or refuse is found by probes and written otherwise, or refused by name."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.model_info import ChatFormat
from jaxgen.text import template_probe
from jaxgen.text.chat_template import ChatTemplate
from jaxgen.text.template_forms import FORMS
from tests.support.fuzzing import QUICK
from tests.support.known_templates import KNOWN

TEMPLATES = {name: ChatTemplate(chat) for name, chat in KNOWN.items()}
LONG_ID, OTHER_ID = "call_2SWSR9Le7UXHxTMQ5Vj3kDGt", "toolu_01A09q90qw90lq917835lq9"
JOINED, BY_CALL, BEFORE = "as one message", "as a message for each call", "as a message before"
TEXTS, TAGS = "with their arguments as texts", "as text between <tool_call> tags"
AS_SYSTEM, AS_USER, IN_USER = "as system messages", "as a user's message", "in the user's next message"
AFTER = "after the generation prompt"
TURNS = {"user_twice": JOINED, "assistant_twice": JOINED, "assistant_first": "refused: roles must alternate"}
ONE_SYSTEM = {"system_twice": JOINED, "later_system": AS_USER, "developer": AS_SYSTEM}
LEFT_OUT = "refused: the template leaves words out"
OTHER = "refused: another form in it is"
NEEDS_RESULTS = ("text_beside_calls", "several_calls", "ids", "system_before_last_result")


def without_results(reason: str) -> dict[str, str]:
    """What is found of a template that shows or takes no results of calls."""
    return {"call": TAGS, "result": reason, **dict.fromkeys(NEEDS_RESULTS, OTHER)}


NO_TOOLS = without_results(LEFT_OUT) | {"developer": AS_SYSTEM}
NO_TURN = TURNS | without_results("refused: roles must alternate")
TABLE: dict[str, dict[str, str]] = {
    "command-r": {**NO_TURN, **ONE_SYSTEM},
    "deepseek-r1": {"call": TEXTS, "text_beside_calls": BEFORE, **ONE_SYSTEM, "continued_thought": AFTER},
    "deepseek-v3": {"call": TEXTS, "text_beside_calls": BEFORE, "developer": AS_SYSTEM, "continued_system": LEFT_OUT},
    "gemma-2": {**NO_TURN, "system": IN_USER, "developer": AS_SYSTEM},
    "gemma-3": {**NO_TURN, "system_alone": AS_USER, **ONE_SYSTEM},
    "gpt-oss": {
        "several_calls": BY_CALL,
        "system_twice": JOINED,
        "later_system": AS_USER,
        "developer_twice": JOINED,
        "later_developer": AS_SYSTEM,
    },
    "granite-3": {"text_beside_calls": BEFORE},
    "llama-3": {"call": TAGS},
    "llama-3.1": {"text_beside_calls": BEFORE, "several_calls": BY_CALL},
    "llama-guard-3": {
        "user": "as a list of parts",
        "assistant": "as a list of parts",
        **NO_TURN,
        "system": IN_USER,
        "developer": AS_SYSTEM,
    },
    "mistral-tekken": {"developer": AS_SYSTEM},
    "mistral-v1": {**NO_TURN, "system": IN_USER, "developer": AS_SYSTEM},
    "mistral-v3": {
        **TURNS,
        "text_beside_calls": "left out",
        "ids": "as nine letters and digits",
        "system_before_last_result": IN_USER,
        "system_before_last_answer": IN_USER,
        "system_alone": AS_USER,
        **ONE_SYSTEM,
    },
    "phi-3": NO_TOOLS,
    "phi-4": NO_TOOLS,
    "qwen-2.5": {"developer": AS_SYSTEM},
    "qwen-3": {"developer": AS_SYSTEM, "continued_thinking": AFTER},
    "qwen-3.5": {"system_alone": AS_USER, **ONE_SYSTEM},
    "smollm-3": {"call": TAGS, **ONE_SYSTEM, "continued_thought": AFTER, "continued_thinking": AFTER},
    "zephyr": NO_TOOLS,
}
"""By template, what becomes of the forms that are not written as they are."""
WITH_TOOLS = {"gpt-oss", "granite-3", "llama-3.1", "mistral-tekken", "mistral-v3", "qwen-2.5", "qwen-3", "qwen-3.5"}
WITH_TOOLS |= {"smollm-3"}


def said(role: str, content: Any = "", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def call(name: str, call_id: str = "abcdefghi", arguments: Any = '{"city": "Oslo"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, call_id: str = "abcdefghi") -> dict[str, Any]:
    return said("tool", content, name="look", tool_call_id=call_id)


def rendered(name: str, *messages: dict[str, Any], **options: Any) -> str:
    return TEMPLATES[name].render(messages, **options)


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_found_of_known_templates(name: str) -> None:
    found = TEMPLATES[name].findings()
    plain = found["without_tools"]
    assert plain is not None
    assert list(plain) == [form.name for form in FORMS if form.name != "tools"]
    usual = ("as it is", "with their arguments as objects")
    assert {form: way for form, way in plain.items() if way not in usual} == TABLE[name]
    assert (found["with_tools"] is not None) == (name in WITH_TOOLS)
    if found["with_tools"] is not None:
        differs = {form for form, way in found["with_tools"].items() if plain.get(form) != way}
        assert differs == {"tools"} | ({"system_alone"} if name == "llama-3.1" else set())


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_said_once_at_the_start(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "jaxgen")
    ChatTemplate(KNOWN[name]).warm_up()
    (record,) = caplog.records
    for form in FORMS:
        if TABLE[name].get(form.name, OTHER) != OTHER:
            assert form.description in record.getMessage()


WORDS = ("apple", "birch", "cedar", "daisy", "elder", "fennel", "grape")
TEXTS_OF = st.sampled_from(WORDS)
ROLES = st.sampled_from(["system", "developer", "user", "assistant"])
ROUNDS = st.one_of(
    st.builds(lambda role, text: [said(role, text)], ROLES, TEXTS_OF),
    st.builds(
        lambda text, names, ids: [
            said("assistant", text, tool_calls=[call(one, f"{ids}{i}") for i, one in enumerate(names)]),
            *(result(f"of {one}", f"{ids}{i}") for i, one in enumerate(names)),
        ],
        st.sampled_from(["", "mint"]),
        st.lists(st.sampled_from(["poppy", "quince", "rose"]), min_size=1, max_size=3, unique=True),
        st.sampled_from(["call0000", "toolu_01A09q90qw90lq9"]),
    ),
)


@QUICK
@given(st.sampled_from(sorted(KNOWN)), st.lists(ROUNDS, min_size=1, max_size=5), st.booleans())
def test_every_word_is_in_the_prompt_or_it_is_refused(name: str, rounds: list[Any], goes_on: bool) -> None:
    messages = [message for one in rounds for message in one]
    try:
        text = rendered(name, *messages, continue_final_message=goes_on and bool(messages[-1]["content"]))
    except RequestRefusedError as error:
        text = f"refused for {error.param}"
    if text.startswith(("refused for messages", "refused for continue_final_message")):
        return
    wanted = [word for word in json.dumps(messages).split('"') if word in (*WORDS, "poppy", "quince", "rose")]
    if TABLE[name].get("text_beside_calls") != "left out" and not goes_on:
        wanted += ["mint"] * any(message["content"] == "mint" for message in messages)
    assert not [word for word in wanted if word not in text], text


U, A = said("user", "apple"), said("assistant", "birch")
FOUND = said("assistant", "fennel")


@pytest.mark.parametrize(
    ("name", "messages", "text"),
    [
        # No word of a message is lost: of a role, of a role in a place, of one role beside another.
        ("qwen-2.5", [said("developer", "cedar"), U], "<|im_start|>system\ncedar<|im_end|>"),
        ("qwen-3.5", [said("system", "cedar"), said("developer", "daisy"), U], "system\ncedar\n\ndaisy<|im_end|>"),
        ("gpt-oss", [said("system", "cedar"), U, A, said("system", "daisy"), U], "user<|message|>daisy<|end|>"),
        (
            "gpt-oss",
            [said("system", "cedar"), said("developer", "daisy"), U],
            "# Instructions\n\ncedar\n\ndaisy<|end|>",
        ),
        ("gpt-oss", [said("developer", "cedar"), U], "# Instructions\n\ncedar<|end|>"),
        (
            "gpt-oss",
            [said("developer", "cedar"), said("developer", "daisy"), U],
            "# Instructions\n\ncedar\n\ndaisy<|end|>",
        ),
        ("deepseek-r1", [said("system", "cedar"), said("system", "daisy"), U], "<s>cedar\n\ndaisy<"),
        ("gemma-2", [said("system", "cedar"), U], "<start_of_turn>user\ncedar\n\napple<end_of_turn>"),
        ("mistral-v1", [said("system", "cedar"), U], "[INST] cedar\n\napple [/INST]"),
        ("mistral-v3", [said("system", "cedar")], "[INST] cedar[/INST]"),
        ("qwen-3.5", [said("system", "cedar")], "<|im_start|>user\ncedar<|im_end|>"),
        (
            "mistral-v3",
            [said("system", "cedar"), U, said("assistant", tool_calls=[call("look")]), result("rain")],
            "[INST] cedar\n\napple[/INST]",
        ),
        ("gemma-3", [U, said("user", "daisy")], "user\napple\n\ndaisy<end_of_turn>"),
        ("mistral-v1", [U, A, said("assistant", "cedar"), U], "birch\n\ncedar</s>"),
        ("llama-3", [U, said("assistant", tool_calls=[call("look")]), result("rain")], '"name": "look"'),
        # Contents as parts.
        ("llama-guard-3", [U, A, U], "User: apple\nAgent: birch\nUser: apple\n"),
        ("llama-guard-3", [said("system", "cedar"), U], "User: cedar\n\napple\n"),
        # Several calls in a message.
        (
            "llama-3.1",
            [
                U,
                said("assistant", tool_calls=[call("look", "a"), call("see", "b")]),
                result("sun", "b"),
                result("rain", "a"),
            ],
            '"look", "parameters": {"city": "Oslo"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"rain"',
        ),
        (
            "gpt-oss",
            [
                U,
                said("assistant", tool_calls=[call("look", "a"), call("see", "b")]),
                result("rain", "a"),
                result("sun", "b"),
            ],
            'functions.see to=assistant<|channel|>commentary<|message|>"sun"<|end|>',
        ),
        # Text beside calls.
        (
            "llama-3.1",
            [U, said("assistant", "daisy", tool_calls=[call("look")]), result("rain"), FOUND, U],
            "assistant<|end_header_id|>\n\ndaisy<|eot_id|><|start_header_id|>assistant",
        ),
        (
            "granite-3",
            [U, said("assistant", "daisy", tool_calls=[call("look")]), result("rain")],
            '<|tool_call|>[{"name": "look"',
        ),
    ],
)
def test_how_it_is_written(name: str, messages: list[Any], text: str) -> None:
    assert text in rendered(name, *messages)


@pytest.mark.parametrize("call_id", [LONG_ID, OTHER_ID, "chatcmpl-tool-0b6e", "1", "abcd-fghi", "é" * 9])
def test_ids_are_shortened_where_they_are_checked(call_id: str) -> None:
    """Also within one conversation: a call and its result keep one id, other calls have other ids."""
    history = [U, said("assistant", tool_calls=[call("look", call_id)]), result("rain", call_id), FOUND, U]
    (short,) = re.findall(r'"id": "([a-zA-Z0-9]{9})"', rendered("mistral-v3", *history))
    assert f'"call_id": "{short}"' in rendered("mistral-v3", *history)
    again = [*history, said("assistant", tool_calls=[call("see", "abcdefghi")]), result("sun"), FOUND, U]
    assert re.findall(r'"call_id": "(.*?)"', rendered("mistral-v3", *again)) == [short, "abcdefghi"]


def test_different_ids_stay_different() -> None:
    ids = [LONG_ID, OTHER_ID, "1", "2", "abcdefghi", "abcdefghij"]
    calls = [call("look", one) for one in ids]
    text = rendered("mistral-v3", U, said("assistant", tool_calls=calls), *(result("rain", one) for one in ids))
    shown = re.findall(r'"call_id": "(.*?)"', text)
    assert shown == re.findall(r'"id": "(.*?)"', text)
    assert len(set(shown)) == len(ids)


def test_a_call_without_its_result_takes_no_other_calls() -> None:
    calls = [call("look", "a"), call("see", "b"), call("hear", "c")]
    text = rendered("llama-3.1", U, said("assistant", tool_calls=calls), result("rain", "b"), result("wind", "x"))
    places = [text.index(word) for word in ("look", '"wind"', "see", '"rain"', "hear")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "messages", "param", "says"),
    [
        ("zephyr", [U, result("rain")], "messages.1.role", "leaves words out of messages of the role tool"),
        ("phi-3", [U, said("assistant", tool_calls=[call("look")]), result("rain")], "messages.2.role", "role tool"),
        ("smollm-3", [said("robot", "daisy"), U, U], None, ""),
        ("gemma-3", [U, said("assistant", tool_calls=[call("look")]), result("rain")], "messages.2.role", "alternate"),
        ("mistral-v3", [A, U], "messages.0.role", "before the user's first"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(name: str, messages: list[Any], param: str | None, says: str) -> None:
    if param is None:  # a role that OpenAI does not have is the caller's own, in a program
        rendered(name, *messages)
        return
    with pytest.raises(RequestRefusedError, match=says) as refused:
        rendered(name, *messages)
    assert refused.value.param == param


THOUGHT = "<think>\nHm.\n</think>\n\nYes, "


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("text", ["Yes, ", "<think>\nHm", THOUGHT, "<think>\n", "Hm.\n</think>\n\nYes"])
def test_a_message_goes_on_where_it_is(name: str, text: str) -> None:
    """Whatever the template does with thoughts; white space at its end may go where the template trims."""
    prompt = rendered(name, U, said("assistant", text), continue_final_message=True)
    assert prompt.rstrip().endswith(text.rstrip())
    assert prompt.count("<think>") <= max(text.count("<think>"), 1)
    assert prompt.count("</think>") <= max(text.count("</think>"), 1)


def test_a_thought_begins_once() -> None:
    prompt = rendered("deepseek-r1", U, said("assistant", THOUGHT), continue_final_message=True)
    assert prompt.endswith(THOUGHT)
    assert prompt.count("<think>") == 1


def test_a_conversation_that_a_template_takes_is_not_changed() -> None:
    """Neither are its bits: what the probes find concerns the forms that a conversation has, and no others."""
    messages = [said("system", "cedar"), U, said("assistant", tool_calls=[call("look", arguments={})]), result("rain")]
    for name in ("qwen-2.5", "llama-3.1", "granite-3", "gpt-oss"):
        template = TEMPLATES[name]
        plain = template._render(messages, {"add_generation_prompt": True})
        assert template.render(messages) == plain


def test_only_what_a_conversation_has_is_probed() -> None:
    """So a template that comes with a request costs a few renderings."""
    template = ChatTemplate(KNOWN["qwen-2.5"])
    template.render([said("system", "cedar"), U])
    assert len(template._probe._findings) == 3


SLOW = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


def test_probes_of_a_template_that_does_not_end_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxgen.text import chat_template

    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.02)
    template = ChatTemplate(
        ChatFormat("{{ messages[0].content }}{% if messages | length > 1 %}" + SLOW + "{% endif %}", {})
    )
    found = template.findings()["without_tools"]
    assert found is not None
    assert found["user"] == "as it is"
    ended = [way for way in found.values() if way.startswith("not known")]
    assert len(ended) == len(found) - 1
    with pytest.raises(RequestRefusedError, match="too long"):
        template.render([U, A])


def test_probes_end_after_some_seconds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_probe, "PROBE_SECONDS", 0.0)
    template = ChatTemplate(KNOWN["zephyr"])
    found = template.findings()["without_tools"]
    assert found is not None
    assert {way.partition(":")[0] for way in found.values()} == {"not known"}
    assert template.render([U]).startswith("<|user|>\napple")


def test_a_template_that_writes_too_much_is_not_probed_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_probe, "PROBE_CHARACTERS", 10)
    found = ChatTemplate(KNOWN["zephyr"]).findings()["without_tools"]
    assert found is not None
    assert found["user"].startswith("not known")


def test_what_only_some_arguments_let_a_template_show_is_left_to_it() -> None:
    template = ChatTemplate(ChatFormat("{% if not ok %}{{ raise_exception('say ok') }}{% endif %}{{ messages }}", {}))
    assert "apple" in template.render([U], arguments={"ok": True})
    with pytest.raises(RequestRefusedError, match="say ok") as refused:
        template.render([U])
    assert refused.value.param == "messages"
