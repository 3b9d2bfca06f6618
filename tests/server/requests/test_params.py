"""Every field of a request: what the engine gets of it, and how a bad one is refused."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from jaxgen.core.model_info import ChatFormat
from jaxgen.core.sampling_params import Grammar, SamplingDefaults
from jaxgen.server.config import Answers, ServerConfig
from jaxgen.server.limits import Limits
from jaxgen.server.schema.base import CompletionRequest, StreamOptions
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import (
    body,
    client_of,
    complete,
    error_of,
    fake_engine,
    refusal,
    stream_chunks,
)

FIELDS = sorted(CompletionRequest.model_fields)
# Field, value, what SamplingParams must then hold.
REACHES_THE_ENGINE: list[tuple[str, Any, str, Any]] = [
    ("max_tokens", 5, "max_tokens", 5),
    ("min_tokens", 4, "min_tokens", 4),
    ("prompt_logprobs", 3, "prompt_logprobs", 3),
    ("temperature", 0, "temperature", 0.0),
    ("temperature", 1.5, "temperature", 1.5),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_k", 7, "top_k", 7),
    ("top_k", -1, "top_k", 0),
    ("top_k", 0, "top_k", 0),
    ("min_p", 0.25, "min_p", 0.25),
    ("presence_penalty", -2, "presence_penalty", -2.0),
    ("frequency_penalty", 2, "frequency_penalty", 2.0),
    ("repetition_penalty", 1.25, "repetition_penalty", 1.25),
    ("logit_bias", {"0": -100, "399": 2.5}, "logit_bias", {0: -100.0, 399: 2.5}),
    ("seed", -(2**63), "seed", -(2**63)),
    ("stop", "x", "stop", ("x",)),
    ("stop", ["a", "b", "c", "d"], "stop", ("a", "b", "c", "d")),
    ("stop", [], "stop", ()),
    ("stop_token_ids", [3, 399], "stop_token_ids", (3, 399)),
    ("ignore_eos", True, "ignore_eos", True),
    ("allowed_token_ids", [399, 3, 3], "allowed_token_ids", (399, 3, 3)),
    ("bad_words", ["a", " b"], "bad_words", ("a", " b")),
    ("bad_words", [], "bad_words", ()),
    ("include_stop_str_in_output", True, "include_stop_str_in_output", True),
    ("skip_special_tokens", False, "skip_special_tokens", False),
    ("skip_special_tokens", True, "skip_special_tokens", True),
    ("spaces_between_special_tokens", True, "skip_special_tokens", True),
    ("logprobs", 0, "logprobs", 0),
    ("logprobs", 20, "logprobs", 20),
    ("response_format", {"type": "text"}, "grammar", None),
    (
        "response_format",
        {"type": "json_object"},
        "grammar",
        Grammar('start: %json {"type": "object", "x-guidance": {"whitespace_flexible": false}}', "response_format"),
    ),
    ("structured_outputs", {"regex": "a/b"}, "grammar", Grammar(r"start: /a\/b/", "structured_outputs")),
]
DEFAULTS = {
    "max_tokens": 16,
    "min_tokens": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "logprobs": None,
    "prompt_logprobs": None,
    "grammar": None,
    "allowed_token_ids": None,
    "bad_words": (),
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "truncate_prompt_tokens": None,
}
# Field, bad value, a part of the message. The field itself must be the error's param.
REFUSED: list[tuple[str, Any, str]] = [
    ("model", 5, "valid string"),
    ("prompt", 5, "must be a string, a list of strings"),
    ("prompt", "", "must not be empty"),
    ("prompt", [], "must be a string, a list of strings"),
    ("prompt", ["a", ""], "prompt.1 must not be empty"),
    ("prompt", [[]], "prompt must not be empty"),
    ("prompt", [[1, 2], []], "prompt.1 must not be empty"),
    ("prompt", {"text": "a"}, "must be a string, a list of strings"),
    ("prompt", [True], "must be a string, a list of strings"),
    ("prompt", [None], "must be a string, a list of strings"),
    ("prompt", [1.5], "must be a string, a list of strings"),
    ("prompt", [-1], "-1 is not a valid token id: ids are 0 to 399"),
    ("prompt", [5, 400], "400 is not a valid token id"),
    ("prompt", [[5], [10**30]], "prompt.1: 1000000000000000000000000000000 is not a valid token id"),
    ("prompt", ["a"] * 129, "129 entries; this server takes 128"),
    ("prompt", [[1]] * 129, "129 entries; this server takes 128"),
    ("prompt", [2] * 200, "you requested 201 tokens (200 in the prompt, 1 in the completion)"),
    ("max_tokens", 126, "you requested 129 tokens (3 in the prompt, 126 in the completion)"),
    ("max_tokens", 10**30, "128 tokens"),
    ("max_tokens", -1, "0 or more"),
    ("max_tokens", True, "valid integer"),
    ("max_tokens", "5", "valid integer"),
    ("max_tokens", 5.5, "valid integer"),
    ("min_tokens", -1, "between 0 and max_tokens (16)"),
    ("min_tokens", 126, "the context has room for 125"),
    ("prompt_logprobs", 21, "between 0 and 20"),
    ("return_latency", "yes", "valid boolean"),
    ("return_token_ids", 1, "valid boolean"),
    ("return_event_ids", 1, "valid boolean"),
    ("temperature", -0.1, "between 0 and 2"),
    ("temperature", 2.5, "between 0 and 2"),
    ("temperature", True, "valid number"),
    ("temperature", "1", "valid number"),
    ("top_p", -0.5, "between 0 and 1"),
    ("top_p", 1.5, "between 0 and 1"),
    ("top_k", -2, "0 (off) or more"),
    ("top_k", 1.5, "valid integer"),
    ("min_p", 1.5, "between 0 and 1"),
    ("presence_penalty", 2.1, "between -2 and 2"),
    ("frequency_penalty", -2.1, "between -2 and 2"),
    ("repetition_penalty", 0, "in (0, 10]"),
    ("logit_bias", [5], "valid dictionary"),
    ("logit_bias", {"x": 1}, "'x' is not a valid token id: ids are 0 to 399"),
    ("logit_bias", {"400": 1}, "'400' is not a valid token id"),
    ("logit_bias", {"-1": 1}, "'-1' is not a valid token id"),
    ("logit_bias", {"05": 1}, "'05' is not a valid token id"),
    ("logit_bias", {"\u0665": 1}, "is not a valid token id"),
    ("logit_bias", {"9" * 5000: 1}, "is not a valid token id"),
    ("logit_bias", {"5": 101}, "between -100 and 100"),
    ("logit_bias", {str(i): 0 for i in range(301)}, "301 entries; this server takes 300"),
    ("seed", 2**63, "fit in 64 bits"),
    ("seed", 1.5, "valid integer"),
    ("n", 0, "between 1 and 128"),
    ("n", 129, "between 1 and 128"),
    ("n", True, "valid integer"),
    ("best_of", 0, "between n (1) and 128"),
    ("best_of", 129, "between n (1) and 128"),
    ("echo", 1, "valid boolean"),
    ("echo", "true", "valid boolean"),
    ("stream", 1, "valid boolean"),
    ("stream_options", {"include_usage": True}, "needs stream to be true"),
    ("stream_options", {}, "needs stream to be true"),
    ("logprobs", 21, "between 0 and 20 (OpenAI's own limit is 5), not 21"),
    ("logprobs", -1, "between 0 and 20"),
    ("logprobs", True, "valid integer"),
    ("stop", "", "stop must not be an empty string"),
    ("stop", ["a", ""], "stop.1 must not be an empty string"),
    ("stop", 5, "valid string"),
    ("stop", ["a"] * 5, "5 entries; this server takes 4"),
    ("stop", "a" * 257, "stop has 257 characters; this server takes 256"),
    ("stop_token_ids", [400], "400 is not a valid token id"),
    ("stop_token_ids", [-1], "-1 is not a valid token id"),
    ("stop_token_ids", 5, "valid list"),
    ("stop_token_ids", [2] * 65, "65 entries; this server takes 64"),
    ("allowed_token_ids", [], "must not be empty"),
    ("allowed_token_ids", [5, 400], "400 is not a valid token id: ids are 0 to 399"),
    ("allowed_token_ids", 5, "valid list"),
    ("allowed_token_ids", [2] * 4097, "4097 entries; this server takes 4096"),
    ("bad_words", "a", "valid list"),
    ("bad_words", ["a", ""], "bad_words.1 must not be an empty string"),
    ("bad_words", ["a"] * 129, "129 entries; this server takes 128"),
    ("bad_words", ["a" * 257], "bad_words.0 has 257 characters; this server takes 256"),
    ("include_stop_str_in_output", 1, "valid boolean"),
    ("return_tokens_as_token_ids", 1, "valid boolean"),
    ("skip_special_tokens", "no", "valid boolean"),
    ("spaces_between_special_tokens", False, "only the default, true"),
    ("truncate_prompt_tokens", 0, "-1 (as many as fit) or between 1 and 128, not 0"),
    ("truncate_prompt_tokens", -2, "-1 (as many as fit) or between 1 and 128, not -2"),
    ("truncate_prompt_tokens", 129, "between 1 and 128, not 129"),
    ("prompt_logprobs", -1, "whole vocabulary of 400 tokens; this server gives 20 at most"),
    ("ignore_eos", 0, "valid boolean"),
    ("suffix", "end", "not supported"),
    ("response_format", "json", "valid dictionary"),
    ("response_format", {"type": "xml"}, "'text', 'json_object' or 'json_schema'"),
    ("response_format", {"type": "json_schema"}, "needs json_schema with a schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a"}}, "needs json_schema with a schema"),
    ("response_format", {"type": "text", "json_schema": {"schema": {}}}, 'type must be "json_schema"'),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": 5}}, "valid dictionary"),
    ("response_format", {"type": "json_object", "json_schema": {"what": 5}}, "Unknown field"),
    ("structured_outputs", {}, "this has none"),
    ("structured_outputs", {"json_object": False}, "this has none"),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}, "this has regex and choice"),
    ("structured_outputs", {"choice": []}, "must have at least one text"),
    ("structured_outputs", {"choice": [5]}, "valid string"),
    ("structured_outputs", {"json": "{"}, "not valid JSON"),
    ("structured_outputs", {"json": 5}, "must be a JSON schema"),
    ("structured_outputs", {"regex": "a", "whitespace_pattern": " "}, "options for white space work only with json"),
    (
        "structured_outputs",
        {"disable_additional_properties": True, "disable_any_whitespace": False},
        "options for white space work only with json",
    ),
    ("structured_outputs", {"lark": "a"}, "Unknown field"),
    ("user", 5, "valid string"),
    ("cache_salt", 5, "valid string"),
    ("cache_salt", "", "must not be empty"),
    ("priority", 2**31, "lower is served first"),
    ("priority", -(2**31), "lower is served first"),
    ("priority", "high", "valid integer"),
    ("service_tier", 5, "valid string"),
    ("service_tier", "gold", "must be one of auto, default"),
    ("resume", "7", "valid dictionary"),
    ("nonsense", 1, "Unknown field 'nonsense'"),
]


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    with client_of(engine) as made:
        yield made


@pytest.mark.parametrize(("field", "value", "name", "expected"), REACHES_THE_ENGINE)
def test_a_field_reaches_the_engine_and_no_other_changes(
    engine: FakeEngine, field: str, value: Any, name: str, expected: Any
) -> None:
    complete(engine, **{field: value})
    params, wanted = engine.requests[0].params, DEFAULTS | {name: expected}
    assert {key: getattr(params, key) for key in wanted} == wanted


def test_every_field_has_a_test_of_its_refusal_and_one_of_its_use() -> None:
    used_elsewhere = {
        "model",
        "prompt",
        "n",
        "best_of",
        "echo",
        "stream",
        "stream_options",
        "suffix",
        "user",
        "cache_salt",
        "priority",
        "resume",
        "return_latency",
        "return_event_ids",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "service_tier",
        "truncate_prompt_tokens",
    }
    assert {row[0] for row in REACHES_THE_ENGINE} | used_elsewhere == set(FIELDS)
    assert {row[0] for row in REFUSED} == set(FIELDS) | {"nonsense"}


@pytest.mark.parametrize(("field", "value", "message"), REFUSED)
def test_a_bad_value_is_refused_by_name(engine: FakeEngine, field: str, value: Any, message: str) -> None:
    error = refusal(engine, **{field: value})
    assert (error["type"], error["param"].split(".")[0]) == ("invalid_request_error", field)
    assert message in error["message"]


@pytest.mark.parametrize("field", FIELDS)
def test_null_means_absent(field: str) -> None:
    absent, null = fake_engine(), fake_engine()
    config = ServerConfig(answers=Answers(seed=0))
    with client_of(absent, config) as client:
        without = client.post("/v1/completions", json={k: v for k, v in body().items() if k != field})
    with client_of(null, config) as client:
        answer = client.post("/v1/completions", json=body(**{field: None}))
    assert answer.status_code == without.status_code
    if field == "prompt":
        assert answer.status_code == 400
        assert answer.json() == without.json()
        assert error_of(answer.json())["param"] == field
        return
    assert answer.json()["choices"] == without.json()["choices"]
    assert [request.params for request in null.requests] == [request.params for request in absent.requests]


@pytest.mark.parametrize("field", sorted(StreamOptions.model_fields))
def test_null_means_absent_in_stream_options(client: TestClient, field: str) -> None:
    answer = client.post("/v1/completions", json=body(stream=True, stream_options={field: None}))
    assert answer.status_code == 200
    assert all("usage" not in chunk for chunk in stream_chunks(answer.text))


def test_an_unknown_stream_option_is_refused_by_name(engine: FakeEngine) -> None:
    error = refusal(engine, stream=True, stream_options={"include_everything": True})
    assert error["param"] == "stream_options.include_everything"
    assert "Unknown field" in error["message"]


def test_events_are_not_padded(engine: FakeEngine) -> None:
    error = refusal(engine, stream=True, stream_options={"include_obfuscation": True})
    assert error["param"] == "stream_options.include_obfuscation"
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(stream=True, stream_options={"include_obfuscation": False}))
    assert answer.status_code == 200


def test_best_of_over_n_cannot_be_streamed(engine: FakeEngine) -> None:
    assert refusal(engine, stream=True, best_of=2)["param"] == "best_of"
    assert refusal(engine, n=3, best_of=2)["param"] == "best_of"


def test_another_model_is_not_found(engine: FakeEngine) -> None:
    error = refusal(engine, status=404, model="gpt-4")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"] == f"The model `gpt-4` does not exist. This server has `{engine.model.name}`."


def test_a_context_error_has_openais_code_and_words(engine: FakeEngine) -> None:
    """Clients find both, and read the numbers."""
    error = refusal(engine, max_tokens=126)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert error["message"] == (
        "This model's maximum context length is 128 tokens. However, you requested 129 tokens (3 in the prompt, 126 in "
        "the completion). Please reduce the length of the prompt or completion."
    )
    complete(engine, max_tokens=125)


def test_limits_come_from_the_configuration(engine: FakeEngine) -> None:
    config = ServerConfig(
        limits=Limits(max_prompts=1, max_n=2, max_stop_strings=1, max_stop_length=3, max_logit_bias=0)
    )
    with client_of(engine, config) as client:
        for fields in (
            {"prompt": ["a", "b"]},
            {"n": 3},
            {"stop": ["a", "b"]},
            {"stop": "abcd"},
            {"logit_bias": {"5": 1}},
        ):
            assert client.post("/v1/completions", json=body(**fields)).status_code == 400, fields
    assert engine.requests == []


def test_a_long_list_of_stop_strings_is_taken_where_the_configuration_says_so() -> None:
    engine = fake_engine()
    with client_of(engine, ServerConfig(limits=Limits(max_stop_strings=16))) as client:
        assert client.post("/v1/completions", json=body(stop=list("abcdefghijklmnop"))).status_code == 200
        assert client.post("/v1/completions", json=body(stop=["a"] * 17)).status_code == 400


def test_what_is_left_out_is_the_models_own() -> None:
    """A request's own values win; null is the same as nothing."""
    defaults = SamplingDefaults(temperature=0.25, top_p=0.5, top_k=9, min_p=0.125, repetition_penalty=1.5, max_tokens=6)
    names = tuple(asdict(defaults))
    engine = fake_engine()
    engine.model = replace(engine.model, defaults=defaults, chat=ChatFormat("{{ messages[0].content }}", {}))
    nothing: dict[str, Any] = {}
    own = {"temperature": 1.0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "max_tokens": 3}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    with client_of(engine) as client:
        for fields in (nothing, dict.fromkeys(names), own):
            for path, asked in (("completions", body()), ("chat/completions", chat)):
                assert client.post(f"/v1/{path}", json=asked | fields).status_code == 200
        answer = client.post("/v1/responses", json={"model": MODEL, "input": "Hi"}).json()
        assert client.get("/capabilities").json()["sampling_defaults"] == asdict(defaults)
    assert (answer["temperature"], answer["top_p"]) == (0.25, 0.5)
    given = [{name: getattr(request.params, name) for name in names} for request in engine.requests]
    assert given == [asdict(defaults)] * 4 + [own] * 2 + [asdict(defaults)]
