"""Where the time of a request went: by hand for a meter, as sums of a real engine's, and in answers."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from jaxgen.core.model_info import Pooling
from jaxgen.core.request import Latency
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.latency import LatencyMeter
from jaxgen.engine.observer import MeasuredStep
from tests.server.api.test_chat import chat, chat_engine, user
from tests.server.api.test_embeddings import embed
from tests.server.responses.test_responses import ask
from tests.support.engines import engine_config, make_engine, request, run
from tests.support.fakes import fake_latency, says
from tests.support.server_app import body, byte_by_byte, client_of, complete, fake_engine, stream_chunks
from tests.support.tool_engines import tool_engine


def sequence(name: str, length: int) -> Sequence:
    made = request(name, [5] * length, max_tokens=9)
    return Sequence(made, eos_token_ids=frozenset(), arrival=0, seed=0)


def measured(plan: StepPlan, began: float) -> MeasuredStep:
    """A step of 10 tokens."""
    return MeasuredStep(1, plan, plan.chunks, began, began + 1.0, predicted=1.0, width=10, narrow=False, projected=0)


def test_by_hand() -> None:
    """Steps of 10 tokens: another's alone, two pieces of a prompt of 12, computed anew after a preemption together with
    the token generated, and a decode in a narrow step of 2."""
    meter, one, other = LatencyMeter(), sequence("one", 12), sequence("other", 1)
    meter.queued(other, 99.0)
    meter.queued(one, 100.0)
    meter.read(measured(StepPlan((Chunk(other, 0, 1),), (other,)), 99.0))
    for plan, began in ((StepPlan((Chunk(one, 0, 3),), (one,)), 101.0), (StepPlan((Chunk(one, 3, 9),)), 102.0)):
        meter.read(measured(plan, began))
    first = meter.latency_of(one, 104.0)
    assert first == Latency(
        queue_seconds=1, prompt_seconds=3, decode_seconds=0, prompt_chunks=2, steps=2, padding_share=0.4, preemptions=0
    )
    one.standing.num_preemptions, one.standing.num_drafted_steps, one.standing.num_accepted = 1, 2, 5
    one.tokens.append(7)
    meter.read(measured(StepPlan((Chunk(one, 0, 5),), (one,)), 104.0))
    meter.read(measured(StepPlan((Chunk(one, 5, 8),)), 105.0))
    meter.read(measured(StepPlan((Chunk(one, 13, 1),)), 106.0)._replace(width=2, narrow=True))
    last = meter.latency_of(one, 109.5)
    assert (last.queue_seconds, last.prompt_seconds, last.decode_seconds) == (1, 3, 5.5)
    assert (last.prompt_chunks, last.steps, last.preemptions, last.accepted_length) == (4, 5, 1, 3.5)
    assert last.padding_share == pytest.approx((7 + 1 + 5 + 2 + 1) / 42)
    meter.ended(one, "length")
    meter.ended(other, "length")
    assert meter._records == {}


def test_an_engine_says_it_at_both_ends_or_with_every_event() -> None:
    engine = make_engine()
    quiet = request("quiet", range(3, 43), max_tokens=5, ignore_eos=True)
    asks = replace(request("asks", range(50, 90), max_tokens=5, ignore_eos=True), latency=True)
    events = run(engine, [quiet, asks, request("nothing", [5], max_tokens=0)])
    assert [event.latency is not None for event in events["quiet"]] == [True, False, False, False, True]
    told = [event.latency for event in events["asks"] if event.latency is not None]
    assert [latency.decode_seconds > 0 for latency in told] == [False, True, True, True, True]
    assert len({(one.queue_seconds, one.prompt_seconds, one.prompt_chunks) for one in told}) == 1
    steps = told[0].steps
    assert [latency.steps for latency in told] == [steps + i for i in range(5)]
    assert told[0].queue_seconds > 0
    assert told[0].prompt_seconds > 0
    assert told[0].prompt_chunks > 1
    assert 0 < told[-1].padding_share < 1
    assert events["nothing"][0].latency is None
    assert engine.output.latencies._records == {}


def test_what_was_preempted_says_so() -> None:
    engine = make_engine(config=engine_config(num_blocks=32))
    todo = [request(f"r{i}", range(3, 40 + 5 * i), max_tokens=100, ignore_eos=True) for i in range(4)]
    events = run(engine, todo)
    last = [events[one.request_id][-1].latency for one in todo]
    assert sum(latency.preemptions for latency in last if latency is not None) == engine.stats().preemptions > 0


def test_aborted_and_failed_requests_leave_no_record() -> None:
    engine = make_engine()
    for name in ("aborted", "failed"):
        engine.add(request(name, [5] * 6))
    engine.step()
    engine.abort("aborted")
    engine._fail(ValueError("made up"))
    assert engine.output.latencies._records == {}


def shown(index: int, cached: int = 0) -> dict[str, Any]:
    return asdict(fake_latency(index)) | {"cached_tokens": cached}


def test_answers_have_it_by_choice_if_asked() -> None:
    engine = fake_engine(cached=3)
    answer = complete(engine, n=2, max_tokens=4, return_latency=True)
    assert [choice["latency"] for choice in answer["choices"]] == [shown(3, cached=3)] * 2
    assert all("latency" not in choice for choice in complete(engine, n=2)["choices"])
    whole = chat(chat_engine(), user("Hi"), return_latency=True, max_tokens=2)
    assert whole["choices"][0]["latency"] == shown(1)


def test_a_stop_string_does_not_lose_it() -> None:
    engine = fake_engine(reply=says(byte_by_byte("abcdef")))
    answer = complete(engine, stop="c", return_latency=True, max_tokens=6)
    assert answer["choices"][0]["latency"] == shown(2)


def test_streams_have_it_where_a_choice_ends() -> None:
    with client_of(fake_engine()) as client:
        answer = client.post("/v1/completions", json=body(stream=True, max_tokens=4, return_latency=True))
    choices = [chunk["choices"][0] for chunk in stream_chunks(answer.text)]
    assert [choice.get("latency") for choice in choices] == [None] * (len(choices) - 1) + [shown(3)]
    assert choices[-1]["finish_reason"] == "length"
    chunks = chat(chat_engine(), user("Hi"), return_latency=True, stream=True, max_tokens=2)
    assert [chunk["choices"][0].get("latency") for chunk in chunks] == [None] * (len(chunks) - 1) + [shown(1)]


def test_a_response_has_it_when_it_has_ended() -> None:
    fields: dict[str, Any] = {"return_latency": True, "max_output_tokens": 3}
    assert ask(tool_engine("hermes", "Hello", cached=2), **fields)["latency"] == shown(2, cached=2)
    assert "latency" not in ask(tool_engine("hermes", "Hello"))
    engine = tool_engine("hermes", "Hello")
    events = ask(engine, stream=True, **fields)
    assert [event["response"].get("latency") for event in events if "response" in event] == [None, None, shown(2)]
    assert engine.requests[0].latency


def test_each_embedding_has_it_if_asked() -> None:
    for form in ("float", "base64"):
        answer = embed(fake_engine(), input=["a", "b"], return_latency=True, encoding_format=form)
        assert [one["latency"] for one in answer["data"]] == [shown(0)] * 2
    assert all("latency" not in one for one in embed(fake_engine(), input=["a", "b"])["data"])


def test_an_embedding_of_a_real_engine_knows_its_steps() -> None:
    """A prompt in several pieces: no time passes after its hidden states are there."""
    engine = make_engine()
    asks = replace(request("asks", range(3, 43), max_tokens=0), pooling=Pooling.MEAN, latency=True)
    ((event,),) = run(engine, [asks]).values()
    assert event.embedding is not None
    assert event.latency is not None
    assert event.latency.prompt_seconds > 0
    assert event.latency.decode_seconds == 0
    assert event.latency.prompt_chunks == event.latency.steps > 1
