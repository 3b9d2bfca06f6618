"""Single operations of a template end at once, whatever it asks for; others are as ever."""

from typing import Any

import pytest

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.model_info import ChatFormat
from jaxgen.text.chat_template import ChatTemplate

SHOWS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
GROWS = (
    "{%% set ns = namespace(x='ab') %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x|length }}"
)


def rendered(template: str, **kwargs: Any) -> str:
    return ChatTemplate(ChatFormat(template, {})).render([{"role": "user", "content": "Hi"}], arguments=kwargs)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 10 ** (10 ** 8) }}",
        "{{ n ** n }}",
        "{{ 'a' * 300000000 }}",
        "{{ 300000000 * 'a' }}",
        "{{ [0] * 10000000 }}",
        GROWS % "ns.x + ns.x",
        GROWS % "ns.x ~ ns.x",
        GROWS % "[ns.x, ns.x]|join",
        GROWS % "ns.x.join([ns.x, ns.x])",
        GROWS % "ns.x.replace('a', ns.x)",
        GROWS % "ns.x|replace('a', ns.x)",
        GROWS % "ns.x|upper * 3",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a'|center(n) }}",
        "{{ '%10000000000d' % n }}",
        "{{ '{:>10000000000}'.format(n) }}",
        "{{ m|format(n) }}",
        "{{ lipsum(100000000) }}",
    ],
)
def test_what_is_too_much_is_refused(template: str) -> None:
    with pytest.raises(RequestRefusedError, match=r"too much for a chat template|lipsum"):
        rendered(template, n=10**8, m="%10000000000d")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("2 ** 10", "1024"),
        ("1.5 * 4 + 7 % 4", "9.0"),
        ("'ab' * 3 ~ '-' * n", "ababab--"),
        ("'a' + 'b'", "ab"),
        ("[1] + [2]", "[1, 2]"),
        ("'%s=%05.1f' % ('x', 2.25)", "x=002.2"),
        ("'id:12345678 %s' % 'x'", "id:12345678 x"),
        ("'{:>5}|{}'.format('a', 'b')", "    a|b"),
        ("'a'|center(5) ~ '%d'|format(7)", "  a  7"),
        ("'a,b'.split(',')|join(' ')|replace('a', 'c')", "c b"),
        ("{'a': [1, 2]}|tojson(indent=1)", '{\n "a": [\n  1,\n  2\n ]\n}'),
        ("[3, 1, 2]|sort|map('string')|join", "123"),
        ("range(3)|list ~ (messages|length)", "[0, 1, 2]1"),
        ("2 ** -1", "0.5"),
    ],
)
def test_what_templates_do_is_as_ever(expression: str, text: str) -> None:
    assert rendered(SHOWS + "[" + "{{ " + expression + " }}]", n=2) == f"user: Hi[{text}]"


def test_other_programs_environments_are_left_alone() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    rendered(SHOWS)
    environment = ImmutableSandboxedEnvironment()
    assert environment.from_string("{{ 'a' * n }}").render(n=2**25) == "a" * 2**25
    assert "lipsum" in environment.globals
