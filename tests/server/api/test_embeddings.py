"""POST /v1/embeddings."""

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse, EmbeddingCreateParams
from starlette.testclient import TestClient

from jaxgen.core.model_info import ModelInfo, Pooling
from jaxgen.core.pooling import unit_vector
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.server.api.embeddings import EmbeddingRequest
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.limits import Queue
from tests.support.fakes import MODEL, FakeEngine, fake_embedding
from tests.support.server_app import TOKENIZER, call, client_of, error_of, fake_engine

FIELDS = sorted(EmbeddingRequest.model_fields)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "Say", **fields}


def post(engine: FakeEngine, config: ServerConfig | None = None, headers: Any = None, **fields: Any) -> Any:
    with client_of(engine, config or ServerConfig()) as client:
        return client.post("/v1/embeddings", json=body(**fields), headers=headers)


def embed(engine: FakeEngine, **fields: Any) -> dict[str, Any]:
    """The answer to a request that must succeed."""
    answer = post(engine, **fields)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def expected(tokens: list[int], dimensions: int | None = None) -> list[float]:
    return unit_vector(fake_embedding(tokens), dimensions).tolist()


def vectors(answer: dict[str, Any]) -> list[Any]:
    return [one["embedding"] for one in answer["data"]]


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


# --- what is answered


def test_the_answer_has_openais_shape(engine: FakeEngine) -> None:
    tokens = [TOKENIZER.encode(text) for text in ("Say", "hello there")]
    answer = embed(engine, input=["Say", "hello there"])
    count = sum(map(len, tokens))
    assert answer == {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": expected(one)} for i, one in enumerate(tokens)],
        "model": MODEL,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
    assert CreateEmbeddingResponse.model_validate(answer, strict=True).data[1].index == 1
    for request in engine.requests:
        assert (request.pooling, request.params.max_tokens) == (Pooling.LAST, 0), "as the model says"


def test_inputs_of_every_kind(engine: FakeEngine) -> None:
    for value, tokens in (
        ("Say é", [TOKENIZER.encode("Say é")]),
        (["a", "b"], [TOKENIZER.encode("a"), TOKENIZER.encode("b")]),
        ([5, 399], [[5, 399]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ):
        assert vectors(embed(engine, input=value)) == [expected(one) for one in tokens]


def test_base64_has_the_same_numbers(engine: FakeEngine) -> None:
    inputs = [[5, 6], [7, 8, 9]]
    for value in (None, "float"):
        assert vectors(embed(engine, input=inputs, encoding_format=value)) == [expected(one) for one in inputs]
    for dimensions in (None, 3):
        found = vectors(embed(engine, input=inputs, encoding_format="base64", dimensions=dimensions))
        decoded = [np.frombuffer(b64decode(one), "<f4").tolist() for one in found]
        assert decoded == [expected(one, dimensions) for one in inputs]


@pytest.mark.parametrize("dimensions", [1, 3, 4])
def test_dimensions_are_the_first_at_length_one(engine: FakeEngine, dimensions: int) -> None:
    ((*found,),) = vectors(embed(engine, input=[5, 6, 7], dimensions=dimensions))
    assert found == expected([5, 6, 7], dimensions)
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)


def test_the_order_is_that_of_the_inputs_which_run_at_once(engine: FakeEngine) -> None:
    """The first comes last."""
    together: list[int] = []

    async def pace(request: Request, index: int) -> None:
        together.append(len(engine.open))
        for _ in range(10 if request.prompt == (5,) else 1):
            await asyncio.sleep(0)

    engine.pace = pace
    assert vectors(embed(engine, input=[[5], [6], [7]])) == [expected([token]) for token in (5, 6, 7)]
    assert max(together) == 3


def test_user_changes_nothing_and_a_salt_reaches_the_engine(engine: FakeEngine) -> None:
    assert embed(engine, user="u") == embed(engine)
    embed(engine, cache_salt="salt")
    assert [request.cache_salt for request in engine.requests] == [None, None, "salt"]


def test_each_caller_has_a_salt_of_its_own(engine: FakeEngine) -> None:
    config = ServerConfig(access=Access(api_keys=("one", "two")))
    assert post(engine, config).status_code == 401
    for key in ("one", "two"):
        assert post(engine, config, headers={"Authorization": f"Bearer {key}"}).status_code == 200
    first, second = (request.cache_salt for request in engine.requests)
    assert first
    assert second
    assert first != second


@pytest.mark.parametrize(("most", "kept"), [(5, 5), (-1, 128), (128, 128)])
def test_the_last_tokens_of_an_input_are_embedded(engine: FakeEngine, most: int, kept: int) -> None:
    tokens = [2 + i % 300 for i in range(200)]
    answer = embed(engine, input=[tokens, [9]], truncate_prompt_tokens=most)
    assert [request.prompt for request in engine.requests] == [tuple(tokens[-kept:]), (9,)]
    assert answer["usage"]["prompt_tokens"] == kept + 1


def test_many_inputs_are_taken(engine: FakeEngine) -> None:
    assert len(embed(engine, input=["a"] * 2048)["data"]) == 2048


# --- what is refused

REFUSED: list[tuple[str, Any, str]] = [
    ("model", 5, "valid string"),
    ("input", 5, "input must be a string, a list of strings"),
    ("input", "", "must not be empty"),
    ("input", [], "input must be a string, a list of strings"),
    ("input", ["a", ""], "must not be empty"),
    ("input", [[]], "must not be empty"),
    ("input", [True], "input must be a string, a list of strings"),
    ("input", [5, 400], "input: 400 is not a valid token id: ids are 0 to 399"),
    ("input", [2] * 129, "your input resulted in 129 tokens"),
    ("input", ["a"] * 2049, "2049 entries; this server takes 2048"),
    ("dimensions", 0, "between 1 and 4, as this model has, not 0"),
    ("dimensions", 5, "between 1 and 4, as this model has, not 5"),
    ("dimensions", 2.5, "valid integer"),
    ("encoding_format", "int8", "'float' or 'base64'"),
    ("encoding_format", 5, "'float' or 'base64'"),
    ("user", 5, "valid string"),
    ("cache_salt", "", "must not be empty"),
    ("return_latency", 1, "valid boolean"),
    ("truncate_prompt_tokens", 0, "-1 (as many as fit) or between 1 and 128, not 0"),
    ("prompt", "a", "Unknown field 'prompt'"),
]


@pytest.mark.parametrize(("field", "value", "message"), REFUSED)
def test_a_bad_value_is_refused_by_name(engine: FakeEngine, field: str, value: Any, message: str) -> None:
    answer = post(engine, **{field: value})
    assert answer.status_code == 400, answer.text
    error = error_of(answer.json())
    assert (error["type"], error["param"].split(".")[0]) == ("invalid_request_error", field)
    assert message in error["message"]
    assert engine.requests == []


def test_every_field_has_a_test_of_its_refusal_and_is_openais_but_for_three() -> None:
    assert {row[0] for row in REFUSED} == set(FIELDS) | {"prompt"}
    assert set(EmbeddingCreateParams.__annotations__) == set(FIELDS) - {
        "cache_salt",
        "return_latency",
        "truncate_prompt_tokens",
    }


@pytest.mark.parametrize("field", FIELDS)
def test_null_means_absent(engine: FakeEngine, field: str) -> None:
    answer = post(engine, **{field: None})
    if field == "input":
        assert (answer.status_code, error_of(answer.json())["param"]) == (400, field)
    else:
        assert answer.json() == embed(fake_engine())


def test_a_prompt_as_long_as_the_context_is_taken(engine: FakeEngine) -> None:
    assert embed(engine, input=[2] * 128)["usage"]["prompt_tokens"] == 128
    error = error_of(post(engine, input=[2] * 129).json())
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == (
        "This model's maximum context length is 128 tokens. However, your input resulted in 129 tokens. Please reduce "
        "the length of the input."
    )


def test_a_model_without_embeddings_says_so() -> None:
    answer = post(fake_engine(model=ModelInfo(MODEL, 128, 400)))
    assert (answer.status_code, error_of(answer.json())["message"]) == (400, "This model gives no embeddings.")


def test_another_model_is_not_found(engine: FakeEngine) -> None:
    answer = post(engine, model="other")
    assert (answer.status_code, error_of(answer.json())["code"]) == (404, "model_not_found")


def while_two_inputs_wait(engine: FakeEngine, config: ServerConfig, *, asked: dict[str, dict[str, Any]]) -> list[int]:
    """The statuses of requests, by path, that are sent meanwhile, of those two, and of one more input after them."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def run() -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def pace(request: Request, index: int) -> None:
            if request in engine.requests[:2]:
                if len(engine.requests) == 2:
                    started.set()
                await go_on.wait()

        engine.pace = pace
        app = create_app(engine, config)
        two = asyncio.create_task(call(app, body(input=["a", "b"]), send, path="/v1/embeddings"))
        await started.wait()
        for path, fields in asked.items():
            await asyncio.wait_for(call(app, fields, send, path=path), 30)
        go_on.set()
        await two
        await call(app, body(), send, path="/v1/embeddings")

    asyncio.run(run())
    return statuses


def test_the_queue_is_bounded_here_too() -> None:
    """What waits for an embedding counts, and no longer when it has it."""
    for limits in ({"max_queued_requests": 2}, {"max_queued_tokens": 3}):
        config = ServerConfig(queue=Queue(**limits))
        asked = {"/v1/embeddings": body(input=[[5, 6]])}
        assert while_two_inputs_wait(fake_engine(), config, asked=asked) == [429, 200, 200]


def test_the_inputs_of_a_request_count_as_one(engine: FakeEngine) -> None:
    config = ServerConfig(queue=Queue(max_queued_requests=3))
    completion = {"model": MODEL, "prompt": "a", "n": 2}
    asked = {"/v1/completions": completion, "/v1/embeddings": body(input=["a"] * 9)}
    assert while_two_inputs_wait(engine, config, asked=asked) == [200, 200, 200, 200]


# --- what goes wrong


@pytest.fixture
def failing(engine: FakeEngine) -> Iterator[TestClient]:
    async def pace(request: Request, index: int) -> None:
        if request.prompt == (6,):
            raise RuntimeError("broken")
        await asyncio.sleep(60)

    engine.pace = pace
    with client_of(engine) as client:
        yield client


def test_one_that_fails_ends_all(engine: FakeEngine, failing: TestClient) -> None:
    answer = failing.post("/v1/embeddings", json=body(input=[[5], [6], [7]]))
    assert answer.status_code == 500
    assert error_of(answer.json())["type"] == "server_error"
    assert (len(engine.aborted), engine.open) == (3, set())


@pytest.mark.parametrize(("reason", "status"), [(FinishReason.ERROR, 500), (FinishReason.ABORT, 503)])
def test_a_request_that_the_engine_gives_up(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, reason: FinishReason, status: int
) -> None:
    async def generate(request: Request) -> Any:
        yield TokenEvent(request.request_id, finish_reason=reason, error="a step failed by SecretError")

    monkeypatch.setattr(engine, "generate", generate)
    answer = post(engine)
    assert answer.status_code == status
    assert error_of(answer.json())["message"]
    assert "SecretError" not in answer.text


def test_hidden_states_without_a_direction_are_an_error(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.fakes.fake_embedding", lambda prompt: (float("inf"), 1.0, 1.0, 1.0))
    answer = post(engine)
    assert answer.status_code == 500
    assert error_of(answer.json())["type"] == "server_error"


def test_a_caller_that_leaves_aborts_its_inputs(engine: FakeEngine) -> None:
    leave = asyncio.Event()

    async def pace(request: Request, index: int) -> None:
        leave.set()
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there")

    engine.pace = pace
    asyncio.run(call(create_app(engine), body(input=["a", "b"]), send, leave=leave, path="/v1/embeddings"))
    assert (len(engine.aborted), engine.open) == (2, set())


@pytest.mark.parametrize("given", [[5], [[5], [6]]])
def test_token_ids_are_warned_of_once(given: Any, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    """Libraries that count tokens with OpenAI's tokenizer send ids of it, which are valid here and mean other texts."""
    with client_of(engine) as client:
        for value in ("Say", ["Say"], given, given):
            assert client.post("/v1/embeddings", json=body(input=value)).status_code == 200
    warnings = [record.getMessage() for record in caplog.records if "token ids" in record.getMessage()]
    assert len(warnings) == 1
    assert "check_embedding_ctx_length=False" in warnings[0]
