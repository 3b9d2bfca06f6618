"""response_format and structured_outputs: the grammar that the engine gets, and whole answers of a real engine."""

import asyncio
import json
import re
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from jaxgen.core.sampling_params import Grammar, SamplingParams
from jaxgen.llm import LLM
from jaxgen.server.app import create_app
from jaxgen.server.requests import grammars
from tests.support.fakes import MODEL
from tests.support.live_server import serve
from tests.support.server_app import client_of, complete, error_of, fake_engine

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "tag": {"enum": ["é/", 'q"', "n\nl"]}},
    "required": ["x", "tag"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=256, token_budget=64, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture(scope="module")
def client(llm: LLM) -> Iterator[OpenAI]:
    with serve(create_app(llm.engine)) as url:
        yield OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def follows(llm: LLM, fields: dict[str, Any], text: str) -> bool:
    """Whether the answer to a request with these fields may be exactly this text."""
    engine = fake_engine()
    complete(engine, **fields)
    grammar = engine.requests[0].params.grammar
    assert grammar is not None
    constraints = llm.engine._constraints
    assert constraints is not None
    followed = constraints.start(SamplingParams(grammar=grammar)).result().grammar
    assert followed is not None
    matcher = followed.matcher
    ids = llm.engine.tokenizer.encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        ({"regex": r"\d{2}/[a-z]+|x"}, ["12/ab", "x"], ["1/a", "12/", "x "]),
        ({"choice": ["a", 'say "b"', "c\n\\d", "é😀"]}, ["a", 'say "b"', "c\n\\d", "é😀"], ["", "b", "é"]),
        ({"choice": ["yes", "yes, of course", "a|b", "/[a-z]/"]}, ["yes", "yes, of course", "a|b", "/[a-z]/"], ["a"]),
        ({"json": POINT}, ['{"x":5,"tag":"q\\""}'], ['{"x": 5,"tag":"q\\""}', '{"x":100,"tag":"q\\""}', "{}"]),
        ({"json": json.dumps(POINT)}, ['{"x":5,"tag":"é/"}'], ['{"tag":"é/","x":5}']),
        ({"json": POINT, "disable_any_whitespace": False}, ['{ "x":\n5, "tag":"é/"}', '{"x":5,"tag":"é/"}'], ["{ }"]),
        ({"json": POINT, "whitespace_pattern": " "}, ['{ "x" : 5,"tag" : "é/" }'], ['{\n"x":5,"tag":"é/"}']),
        ({"json": True}, ["5", '{"a":[null,true]}'], ["", "{a}", "[1, 2]"]),
        ({"json_object": True}, ["{}", '{"a":[1.5,{}]}'], ["[]", '{"a": 1}']),
        ({"grammar": 'start: "a" b+\nb: "b" | "c"'}, ["ab", "abcc"], ["a", "abd"]),
        ({"grammar": 'root ::= "a" b+\nb ::= [b-d]'}, ["ab", "abd"], ["a", "abe"]),
    ],
)
def test_what_is_asked_for_is_what_may_come(
    llm: LLM, asked: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    for text in right:
        assert follows(llm, {"structured_outputs": asked}, text), text
    for text in wrong:
        assert not follows(llm, {"structured_outputs": asked}, text), text


def test_a_choice_of_thousands_is_taken_as_an_enum_of_as_many(llm: LLM) -> None:
    texts = [f"{i * 7919 % 10_007:05} of them" for i in range(5000)]
    fields = {"structured_outputs": {"choice": texts}}
    for right in (texts[0], texts[-1]):
        assert follows(llm, fields, right)
    for wrong in ("99999 of them", texts[0][:-1], texts[0] + texts[1]):
        assert not follows(llm, fields, wrong)


def test_a_choice_too_long_for_a_grammar_is_refused_by_its_field(client: OpenAI) -> None:
    asked = {"structured_outputs": {"choice": [f"{i:09}" for i in range(20_000)]}}
    with pytest.raises(BadRequestError) as refused:
        client.completions.create(model=name_of(client), prompt="a", extra_body=asked)
    assert refused.value.param == "structured_outputs"
    assert "limit" in str(refused.value)


def test_a_schema_may_say_itself_how_its_text_is_spaced(llm: LLM) -> None:
    spaced = POINT | {"x-guidance": {"key_separator": ": ", "item_separator": ", "}}
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "point", "schema": spaced}}}
    assert follows(llm, asked, '{"x": 5, "tag": "é/"}')
    assert not follows(llm, asked, '{"x":5,"tag":"é/"}')


def test_the_same_format_in_both_ways_is_one_too_many() -> None:
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    with client_of(fake_engine()) as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "a", **both})
    assert answer.status_code == 400
    assert error_of(answer.json())["param"] == "structured_outputs"


@pytest.mark.parametrize("depth", [100, 2000, 100_000])
def test_a_schema_of_any_depth_is_answered(client: OpenAI, depth: int) -> None:
    schema = '{"type":"array","items":' * depth + "{}" + "}" * depth
    body = f'{{"model": "{MODEL}", "prompt": "a", "structured_outputs": {{"json": {schema}}}}}'
    with client_of(fake_engine()) as fake:
        answer = fake.post("/v1/completions", content=body)
    assert answer.status_code in (200, 400)


def name_of(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_answers_keep_to_a_schema_whole_and_streamed_and_in_several_choices(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": name_of(client),
        "prompt": "point = ",
        "max_tokens": 60,
        "seed": 7,
        "n": 3,
        "logprobs": 2,
        "extra_body": {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": POINT}}},
    }
    whole = client.completions.create(**asked)
    texts = ["", "", ""]
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        point = json.loads(choice.text)
        assert point.keys() == {"x", "tag"}
        assert point["x"] in range(100)
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or ()).startswith(choice.text)


def test_the_embedded_model_calls_a_tool_where_it_must(client: OpenAI) -> None:
    """By its own chat template, with no key that the schema does not name; it goes on from the tool's result."""
    parameters = {key: value for key, value in POINT.items() if key != "additionalProperties"}
    tools: Any = [{"type": "function", "function": {"name": "go", "parameters": parameters}}]
    asked: dict[str, Any] = {"model": name_of(client), "tools": tools, "max_completion_tokens": 60, "seed": 1}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    must: Any = {"type": "function", "function": {"name": "go"}}
    first = client.chat.completions.create(messages=messages, tool_choice=must, **asked).choices[0]
    assert first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments).keys() == {"x", "tag"}
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "gone"}]
    last = client.chat.completions.create(messages=messages, tool_choice="none", **asked | {"max_completion_tokens": 8})
    assert last.choices[0].message.tool_calls is None
    response = client.responses.create(model=name_of(client), input="go", max_output_tokens=8)
    assert response.output_text


def test_a_grammar_that_is_wrong_is_refused_by_its_field(client: OpenAI) -> None:
    for field, value in (
        ("structured_outputs", {"grammar": "start: nothing"}),
        ("structured_outputs", {"grammar": "root ::= ("}),
        ("structured_outputs", {"regex": "("}),
        ("structured_outputs", {"regex": "((a{100}){100}){100}"}),  # shows with its first token only
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "integr"}}}),
    ):
        for stream in (False, True):
            with pytest.raises(BadRequestError) as refused:
                client.completions.create(model=name_of(client), prompt="a", stream=stream, extra_body={field: value})
            assert refused.value.param == field
            assert refused.value.body["message"].startswith(field)  # type: ignore[index]


def test_a_program_may_ask_for_a_grammar_too(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=1, grammar=Grammar("start: /[a-f]{3,9}!/"))
    first, second = llm.generate(["x", "y"], params)
    assert re.fullmatch("[a-f]{3,9}!", first.text)
    assert re.fullmatch("[a-f]{3,9}!", second.text)


def test_a_grammar_that_takes_long_to_compile_delays_nobody(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled only when another request, on the same event loop, has been answered."""
    constraints, answered = llm.engine._constraints, Event()
    assert constraints is not None
    grammars = constraints._grammars
    compile_now = grammars._compile
    monkeypatch.setattr(grammars, "_compile", lambda *given: answered.wait(60) and compile_now(*given))

    async def both() -> None:
        slow = asyncio.create_task(anext(llm.stream("x", SamplingParams(grammar=Grammar("start: /[ab]{4}/")))))
        async for _ in llm.stream("x", SamplingParams(max_tokens=4)):
            assert not slow.done()
        answered.set()
        assert await slow

    asyncio.run(both())


def test_what_the_first_schema_waits_for_can_be_made_before() -> None:
    """Errors of it are told to nobody, so it is held here that it has none."""
    assert grammars.prepare().result(60) is not None
