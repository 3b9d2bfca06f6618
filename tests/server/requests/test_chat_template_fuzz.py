"""Any template and any arguments of it: an answer or an error that says what is wrong, no failure, no way out of the
sandbox, and an end."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from jaxgen.text import chat_template, rendered_aside
from jaxgen.text.chat_template import ChatTemplate
from tests.server.api.test_fuzz import JSON
from tests.support.fakes import MODEL
from tests.support.fuzzing import LONG, QUICK
from tests.support.server_app import client_of, error_of, fake_engine
from tests.support.tool_templates import BY_FORMAT

SOME_VALUES = """messages messages[0].content tools bos_token x loop.index namespace(a=1) range(9) dict(a=x)
    strftime_now('%Y') ''.__class__ messages.__class__.__mro__ ''['__class__'] ''|attr('__class__') self super()
    cycler.__init__.__globals__ raise_exception.__globals__ raise_exception('no') self._TemplateReference__context
    lipsum() 1/0 'a'*3 ('%s'%x) '{0.__class__}'.format(x) messages.append(1) messages.clear() [x]*9 {x:x} caller() -x
    not(x) '\\ud800' joiner('a') 9**99 undefined.a none.a range(10**9)"""
SOME_FILTERS = """tojson list length join upper map(attribute='__class__') selectattr('role') groupby('role') sort int
    default(1) string first last tojson(indent=2) xmlattr format(1) items reverse safe pprint random batch(2)
    no_such_filter"""
SOME_NAMES = "x tools messages self loop range raise_exception namespace bos_token add_generation_prompt"
VALUES, FILTERS = st.sampled_from(SOME_VALUES.split()), st.sampled_from(SOME_FILTERS.split())
EXPRESSIONS = st.builds("|".join, st.tuples(VALUES) | st.tuples(VALUES, FILTERS) | st.tuples(VALUES, FILTERS, FILTERS))
PIECES = st.recursive(
    st.text(max_size=5) | EXPRESSIONS.map("{{{{ {} }}}}".format),
    lambda inner: st.builds(
        str.format,
        st.sampled_from(
            [
                "{{%- for m in {0} %}}{1}{{{{ m }}}}{{% endfor %}}",
                "{{% if {0} %}}{1}{{% else %}}{1}{{% endif %}}",
                "{{% set x = {0} %}}{1}",
                "{{% set ns = namespace() %}}{{% set ns.x = {0} %}}{1}{{{{ ns.x }}}}",
                "{{% macro f(x) %}}{1}{{% endmacro %}}{{{{ f({0}) }}}}",
                "{{% filter upper %}}{1}{{% endfilter %}}{{{{ {0} }}}}",
                "{{% generation %}}{1}{{% endgeneration %}}{{{{ {0} }}}}",
                "{{% include {0} %}}{1}",
                "{{% for {0} %}}{1}",
            ]
        ),
        EXPRESSIONS,
        inner,
    ),
    max_leaves=4,
)
TEMPLATES = st.lists(PIECES, max_size=3).map("".join) | st.text("{}%# am-|.'\"[](,", max_size=20)
ROLES = st.sampled_from(["system", "user", "assistant", "developer"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": st.text(max_size=9)}), min_size=1, max_size=4)
NAMES = st.sampled_from(SOME_NAMES.split())
ARGUMENTS = st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=3)
LEAKS = ("<class", "<function", "<module", "<built-in", "{'__name__")


def ask(template: str, config: ServerConfig = DEFAULT_CONFIG, **fields: Any) -> Any:
    """The JSON of the answer, or the error object of one that must be refused."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields}
    model = ModelInfo(MODEL, max_model_len=4096, vocab_size=400, chat=ChatFormat(template, {"bos_token": "!"}))
    engine = fake_engine(model=model)
    with client_of(engine, config) as client:
        answer = client.post("/v1/chat/completions", content=json.dumps(body))
    assert answer.status_code in (200, 400), (answer.status_code, answer.text[:500])
    if answer.status_code == 200:
        prompt = engine.tokenizer.decode(engine.requests[0].prompt)
        assert not any(leak in prompt for leak in LEAKS), prompt
        return answer.json()
    return error_of(answer.json())


@QUICK
@given(template=TEMPLATES, messages=MESSAGES, arguments=ARGUMENTS)
def test_fuzz(template: str, messages: list[Any], arguments: dict[str, Any]) -> None:
    ask(template, messages=messages, chat_template_kwargs=arguments)


@pytest.mark.full
@LONG
@given(template=TEMPLATES, messages=MESSAGES, arguments=ARGUMENTS)
def test_fuzz_long(template: str, messages: list[Any], arguments: dict[str, Any]) -> None:
    ask(template, messages=messages, chat_template_kwargs=arguments)


@QUICK
@given(template=st.sampled_from(sorted(BY_FORMAT.values())), messages=MESSAGES, arguments=ARGUMENTS)
def test_fuzz_arguments_of_usual_templates(template: str, messages: list[Any], arguments: dict[str, Any]) -> None:
    ask(template, messages=messages, chat_template_kwargs=arguments)


LOOP = "{{% for i in range(100000) %}}{}{{% endfor %}}"
ENDLESS = [
    LOOP.format(LOOP.format("")),
    LOOP.format("{% for j in range(100000) if j %}{% continue %}{% endfor %}"),
    "{% block a %}" + LOOP.format("{% set x = i %}" + LOOP.format("")) + "{% endblock %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
]


@pytest.mark.parametrize("template", ENDLESS)
def test_a_template_that_would_not_end_is_ended(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    assert "too long" in ask(template)["message"]


def test_a_limit_is_that_of_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit ends with the rendering that it was for."""
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.0)
    chat = ChatTemplate(ChatFormat("{% for m in messages %}{{ m.content }}{% endfor %}", {}))
    with pytest.raises(TimeoutError):
        chat._render([{"role": "user", "content": "a"}], {})
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 60.0)
    assert chat._render([{"role": "user", "content": "a"}], {}) == "a"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ 'a' * messages | length * 10 ** 7 }}", "10000000 characters"),
        ("{{ 'a' * 10 ** 15 }}", "MemoryError"),
        ("{{ '\\ud800' }}", "surrogates"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% set x = namespace() %}{% set x.__class__ = 5 %}", "__class__"),
        ("{% for m in messages %}", "endfor"),
    ],
)
def test_what_is_wrong_with_a_template_is_said(template: str, says: str) -> None:
    told = ask(template)
    assert (told["param"], says in told["message"]) == ("messages", True), told


def test_what_a_template_does_wrong_by_itself_is_not_quoted(caplog: pytest.LogCaptureFixture) -> None:
    template = "{{ messages[0].content + (5 if messages[0].content == 'a secret' else '') }}"
    told = ask(template, messages=[{"role": "user", "content": "a secret"}])
    assert told["message"] == "The chat template fails on these messages (TypeError)."
    assert "TypeError" in caplog.text
    assert "concatenate" not in caplog.text, "which may quote a message"


@pytest.mark.parametrize("name", ["add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask"])
def test_arguments_that_are_not_the_templates_are_refused(name: str) -> None:
    told = ask("{{ messages }}", chat_template_kwargs={name: True})
    assert (told["param"], name in told["message"]) == ("chat_template_kwargs", True)


@pytest.mark.parametrize(
    ("operation", "says"), [("10 ** (10 ** 8)", "too long"), ("('a' * 10 ** 9) | length", "MemoryError")]
)
def test_a_single_operation_is_ended_and_others_go_on(
    operation: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python does not interrupt it, so its process ends."""
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(rendered_aside, "_GRACE", 0.05)
    assert says in ask("{{ " + operation + " }}")["message"]
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 60.0)
    assert "error" not in ask("Hi")
