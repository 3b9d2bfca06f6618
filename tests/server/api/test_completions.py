"""What /v1/completions answers, worked out by hand from the fake engine's tokens."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

import openai
import pytest
from tokenizers import normalizers

from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.server.app import create_app
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers
from tests.support.fakes import MODEL, FakeEngine, says
from tests.support.live_server import serve
from tests.support.server_app import (
    NONE_CACHED,
    SPACED_TOKENIZER,
    TOKENIZER,
    body,
    byte_by_byte,
    client_of,
    complete,
    error_of,
    fake_engine,
    stream_chunks,
)

HELLO = byte_by_byte("Hello")


@pytest.fixture(scope="module")
def live() -> Iterator[tuple[FakeEngine, str]]:
    engine = fake_engine(reply=says(byte_by_byte("Hello 😀")))
    with serve(create_app(engine)) as url:
        yield engine, f"{url}/v1"


def test_the_openai_client_gets_an_answer(live: tuple[FakeEngine, str]) -> None:
    with openai.OpenAI(base_url=live[1], api_key="none", max_retries=0) as client:
        answer = client.completions.create(model=MODEL, prompt="Say", max_tokens=50)
        assert answer.object == "text_completion"
        assert answer.id.startswith("cmpl-")
        assert (answer.model, len(answer.choices)) == (MODEL, 1)
        choice = answer.choices[0]
        assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, "Hello 😀", "stop", None)
        assert answer.usage is not None
        counts = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
        assert counts == (3, 11, 14), "10 bytes of text and the EOS"


def test_the_async_openai_client_runs_requests_at_once(live: tuple[FakeEngine, str]) -> None:
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=live[1], api_key="none", max_retries=0) as client:
            calls = [client.completions.create(model=MODEL, prompt="Say", max_tokens=i) for i in range(1, 9)]
            return [answer.choices[0].text for answer in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == ["H", "He", "Hel", "Hell", "Hello", "Hello ", "Hello \ufffd", "Hello \ufffd"]


def test_the_openai_client_raises_its_own_errors(live: tuple[FakeEngine, str]) -> None:
    with openai.OpenAI(base_url=live[1], api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(model=MODEL, prompt="Say", temperature=3)
        assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="gpt-4", prompt="Say")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.APIStatusError) as large:
            client.completions.create(model=MODEL, prompt="a" * (5 * 2**20))
        assert large.value.status_code == 413


def test_length_and_stop_token() -> None:
    engine = fake_engine(reply=says(HELLO))
    choice = complete(engine, max_tokens=5)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "length")
    answer = complete(engine, stop_token_ids=[HELLO[2]])
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("He", "stop")
    assert answer["usage"]["completion_tokens"] == 3, "the stop token counts, and is no text"


def test_stop_string_ends_the_engines_work() -> None:
    engine = fake_engine(reply=says(byte_by_byte("one END two")))
    answer = complete(engine, stop=["zzz", "END"], max_tokens=50)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("one ", "stop")
    assert answer["usage"]["completion_tokens"] == len("one END")
    assert len(engine.aborted) == 1


def test_a_stop_string_or_token_is_shown_where_it_is_included() -> None:
    engine = fake_engine(reply=says(byte_by_byte("one END two")))
    choice = complete(engine, stop=["END"], max_tokens=50, include_stop_str_in_output=True)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("one END", "stop")
    with client_of(engine) as client:
        sent = body(stop=["END"], max_tokens=50, include_stop_str_in_output=True, stream=True)
        chunks = stream_chunks(client.post("/v1/completions", json=sent).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one END"
    engine = fake_engine(reply=says(HELLO))
    shown = complete(engine, stop_token_ids=[HELLO[2]], include_stop_str_in_output=True)["choices"][0]
    assert (shown["text"], shown["finish_reason"]) == ("Hel", "stop")
    assert complete(engine, include_stop_str_in_output=True)["choices"][0]["text"] == "Hello"


def test_special_tokens_are_shown_where_they_are_not_skipped() -> None:
    engine = fake_engine(reply=says([*HELLO[:2], 0, *HELLO]))
    assert complete(engine)["choices"][0]["text"] == "HeHello"
    fields = {"skip_special_tokens": False}
    assert complete(engine, **fields)["choices"][0]["text"] == "He<s>Hello"
    assert complete(engine, stop="<s>", **fields)["choices"][0]["text"] == "He"
    assert complete(engine, include_stop_str_in_output=True, **fields)["choices"][0]["text"] == "He<s>Hello</s>"


def test_stop_string_completed_by_the_last_token_is_a_stop() -> None:
    choice = complete(fake_engine(reply=says(HELLO)), stop="o", max_tokens=5)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hell", "stop")


def test_stop_string_completed_by_a_broken_character_is_a_stop() -> None:
    engine = fake_engine(reply=says(byte_by_byte("é")))
    choice = complete(engine, stop="\ufffd", max_tokens=1)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")


def test_text_held_for_a_stop_string_is_given_at_the_end() -> None:
    choice = complete(fake_engine(reply=says(HELLO)), stop="lone", max_tokens=50)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "stop")


def test_min_tokens_holds_off_stop_strings_and_eos() -> None:
    engine = fake_engine(reply=says([*HELLO[:2], 1, *HELLO]))
    assert complete(engine)["choices"][0]["text"] == "He"
    assert complete(engine, min_tokens=4)["choices"][0]["text"] == "HeHello"
    assert complete(engine, min_tokens=4, stop="e")["choices"][0]["text"] == "HeH"
    assert complete(engine, ignore_eos=True, max_tokens=5)["choices"][0]["text"] == "HeHe"


def test_max_tokens_0() -> None:
    engine = fake_engine(reply=says(HELLO))
    answer = complete(engine, max_tokens=0)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "length")
    assert answer["usage"] == {**NONE_CACHED, "prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    answer = complete(engine, max_tokens=0, echo=True, logprobs=1)
    assert answer["choices"][0]["text"] == "Say"
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 3


def test_every_prompt_has_its_choices_in_order() -> None:
    engine = fake_engine(reply=lambda request: byte_by_byte(f"{request.prompt[0]}/{request.params.seed}"))
    answer = complete(engine, prompt=[[5], [6, 7]], n=2, seed=3)
    seeds = [request.params.seed for request in engine.requests]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    expected = [f"{token}/{seed}" for token, seed in zip([5, 5, 6, 6], seeds, strict=True)]
    assert [choice["text"] for choice in answer["choices"]] == [text[:16] for text in expected]
    assert answer["usage"]["prompt_tokens"] == 3, "a prompt counts once, whatever n"
    lengths = [min(len(text) + 1, 16) for text in expected]
    assert answer["usage"]["completion_tokens"] == sum(lengths)


def test_cached_tokens_count_once_per_prompt_and_cache_salts_reach_the_engine() -> None:
    engine = fake_engine(cached=2)
    answer = complete(engine, prompt=[[5, 6, 7], [6, 7, 8]], n=3, cache_salt="tenant")
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert [request.cache_salt for request in engine.requests] == ["tenant"] * 6
    complete(engine)
    assert engine.requests[-1].cache_salt is None


def test_best_of_gives_the_highest_mean_log_probability() -> None:
    # The fake's log-probability of token t is -(t mod 7 + 1) / 8; the EOS, token 1, has -2/8.
    replies = {0: [7, 13], 1: [7, 7, 9], 2: [8], 3: [7, 14, 21]}
    means = {0: -(1 + 7 + 2) / 24, 1: -(1 + 1 + 3 + 2) / 32, 2: -(2 + 2) / 16, 3: -(1 + 1 + 1 + 2) / 32}
    assert sorted(means, key=lambda i: -means[i]) == [3, 1, 2, 0]

    def reply(request: Request) -> list[int]:
        return replies[int(request.request_id.rpartition("-")[2])]

    answer = complete(engine := fake_engine(reply=reply), n=2, best_of=4)
    assert [choice["text"] for choice in answer["choices"]] == [TOKENIZER.decode(replies[i]) for i in (3, 1)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert {request.params.logprobs for request in engine.requests} == {0}
    assert answer["usage"]["completion_tokens"] == 3 + 4 + 2 + 4, "every candidate's tokens count"


def test_best_of_equal_to_n_changes_nothing() -> None:
    engine = fake_engine(reply=says(HELLO))
    assert complete(engine, n=2, best_of=2)["choices"] == complete(engine, n=2)["choices"]
    assert {request.params.logprobs for request in engine.requests} == {None}


def test_logprobs_in_openais_shape() -> None:
    a, b = byte_by_byte("ab")
    logprobs = complete(fake_engine(reply=says([a, b])), logprobs=2)["choices"][0]["logprobs"]

    def own(token: int) -> float:
        return -(token % 7 + 1) / 8

    def top(token: int) -> dict[str, float]:
        best = {TOKENIZER.token_text(token + 1 + i): -(i + 1) / 8 for i in range(2)}
        return best | {TOKENIZER.token_text(token): own(token)}

    assert logprobs == {
        "tokens": ["a", "b", "</s>"],
        "token_logprobs": [own(a), own(b), own(1)],
        "top_logprobs": [top(a), top(b), top(1)],
        "text_offset": [0, 1, 2],
    }


def test_logprobs_0_shows_the_token_alone() -> None:
    a = byte_by_byte("a")[0]
    logprobs = complete(fake_engine(reply=says([a])), logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": -(a % 7 + 1) / 8}]


def test_echo_with_logprobs_begins_with_null() -> None:
    prompt = TOKENIZER.encode("é go")
    answer = complete(fake_engine(reply=says(HELLO)), prompt="é go", echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == "é goHello"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == [TOKENIZER.token_text(token) for token in (*prompt, *HELLO, 1)]
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["token_logprobs"][1:] == [-(token % 7 + 1) / 8 for token in (*prompt[1:], *HELLO, 1)]
    assert logprobs["text_offset"][-1] == len("é goHello")
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or token == "</s>" or choice["text"][offset:].startswith(token)


def test_offsets_stay_within_what_the_caller_wrote() -> None:
    backend = tiny_tokenizers.byte_level()
    backend.normalizer = normalizers.NFKC()
    tokenizer = Tokenizer(backend)
    engine = fake_engine(tokenizer=tokenizer, reply=says(HELLO))
    (choice,) = complete(engine, prompt="\N{LATIN SMALL LIGATURE FFI}", echo=True, logprobs=0, max_tokens=1)["choices"]
    assert choice["logprobs"]["tokens"][:3] == ["f", "f", "i"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1]


def test_echo_of_token_ids_shows_what_they_say() -> None:
    engine = fake_engine(reply=says(HELLO))
    assert complete(engine, prompt=byte_by_byte("ab"), echo=True)["choices"][0]["text"] == "abHello"


def test_a_character_begun_by_the_prompt_is_finished_by_the_completion() -> None:
    first, *rest = byte_by_byte("é")
    engine = fake_engine(reply=says([*rest, *HELLO]))
    assert complete(engine, prompt=[first])["choices"][0]["text"] == "éHello"
    assert complete(engine, prompt=[first], echo=True)["choices"][0]["text"] == "éHello"


def test_offsets_of_a_cut_off_stop_string_stay_within_the_text() -> None:
    engine = fake_engine(reply=says(byte_by_byte("one END two")))
    answer = complete(engine, stop="END", logprobs=0, max_tokens=50)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list("one END"), "every token that was computed and counted"
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 4, 4]


def test_minus_infinity_is_a_number_in_json() -> None:
    class Certain(FakeEngine):
        async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
            async for event in super().generate(request):
                assert event.logprobs is not None
                lowest = type(event.logprobs)(event.logprobs.token, float("-inf"), ((9, float("-inf")),), 10)
                yield TokenEvent(event.request_id, event.token, lowest, finish_reason=event.finish_reason)

    logprobs = complete(Certain(TOKENIZER), logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-9999.0]
    assert set(logprobs["top_logprobs"][0].values()) == {-9999.0}


def test_a_sentencepiece_tokenizer_keeps_the_space_after_the_prompt() -> None:
    the = SPACED_TOKENIZER.encode("the")[-1]
    engine = fake_engine(tokenizer=SPACED_TOKENIZER, reply=says([the, the]))
    prompt = SPACED_TOKENIZER.encode("hello")
    assert prompt[0] == 1, "BOS"
    engine.eos = 2
    assert complete(engine, prompt="hello")["choices"][0]["text"] == " the the"
    assert complete(engine, prompt="hello", echo=True)["choices"][0]["text"] == "hello the the"
    assert complete(engine, prompt=[1])["choices"][0]["text"] == "the the"
    assert [request.prompt for request in engine.requests] == [tuple(prompt), tuple(prompt), (1,)]


def test_an_error_event_is_a_500() -> None:
    class Failing(FakeEngine):
        async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
            yield TokenEvent(request.request_id, 5)
            yield TokenEvent(request.request_id, finish_reason=FinishReason.ERROR, error="step 7 failed\ntrace")

    with client_of(Failing(TOKENIZER)) as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "Say"})
    assert answer.status_code == 500
    error = error_of(answer.json())
    assert error["type"] == "server_error"
    assert error["message"] == "The engine failed on this request."


def test_a_request_that_the_server_aborts_is_a_503() -> None:
    class Aborting(FakeEngine):
        async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
            yield TokenEvent(request.request_id, finish_reason=FinishReason.ABORT)

    with client_of(Aborting(TOKENIZER)) as client:
        assert client.post("/v1/completions", json={"model": MODEL, "prompt": "Say"}).status_code == 503


def test_an_engine_that_ends_without_a_finish_is_an_error() -> None:
    class Silent(FakeEngine):
        async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
            yield TokenEvent(request.request_id, 5)

    with client_of(Silent(TOKENIZER)) as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "Say"})
    assert answer.status_code == 500
    assert "finish event" not in answer.text
