"""What /metrics says of the engine and of the requests that the server answered."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jaxgen.client import EngineStatus
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.operations import Choice
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass
from jaxgen.core.stats import EngineStats, FixedPace, KindStats, SnapshotStats, SpeculationStats
from jaxgen.server.config import ServerConfig
from jaxgen.server.metrics.metrics import Metrics, RequestTimer
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL, says
from tests.support.server_app import (
    TOKENIZER,
    body,
    byte_by_byte,
    client_of,
    fake_engine,
)
from tests.support.tool_engines import tool_engine
from tests.support.tool_requests import (
    HI,
    PARIS,
    PATH,
    WEATHER,
    F,
)


def samples(text: str) -> dict[tuple[str, str], float]:
    """By name and what else labels it; every sample must carry the model's name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == MODEL
            labels = [value for name, value in sample.labels.items() if name not in ("model_name", "le")]
            found[sample.name, "".join(labels)] = sample.value
    return found


def test_metrics() -> None:
    numbers = EngineStats(
        kernels_reason="no faster ones",
        kernels="native",
        kernel_choices={"attention": Choice("native"), "products": Choice("XLA", "no faster ones")},
        num_running=3,
        num_waiting=2,
        block_size=16,
        blocks_total=8,
        blocks_free=6,
        blocks_cached=5,
        steps=11,
        narrow_steps=5,
        step_seconds=1.5,
        host_seconds=0.25,
        prefix_queries=90,
        prefix_hits=64,
        prompt_tokens=100,
        generation_tokens=50,
        step_tokens=170,
        padded_tokens=7,
        preemptions=4,
        leaks=6,
        compilations_after_ready=0,
        pace=FixedPace(longest_step=0.125, first_token=0.75),
    )
    engine = fake_engine(numbers=numbers, reply=says(byte_by_byte("Hello END")))
    with client_of(engine) as client:
        client.post("/v1/completions", json=body(max_tokens=3))
        client.post("/v1/completions", json=body(n=2, stop="END", max_tokens=50))
        client.post("/v1/completions", json=body(max_tokens=4, stream=True))
        answer = client.get("/metrics")
        head = client.head("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert (head.status_code, head.content) == (200, b"")
    found = samples(answer.text)
    (labels,) = (one for one in answer.text.splitlines() if one.startswith("jaxgen_kernels_info{"))
    for label in ('kernels="native"', 'reason="no faster ones"', 'attention="native"', 'products="XLA"'):
        assert label in labels
    assert found["jaxgen_cache_config_info", "168"] == 1  # block_size and num_gpu_blocks
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.25,
        "kv_cache_blocks": 8,
        "longest_step_seconds": 0.125,
        "first_token_seconds_per_1000_prompt_tokens": 0.75,
        "prompt_tokens_total": 100,
        "generation_tokens_total": 50,
        "step_tokens_total": 170,
        "padded_tokens_total": 7,
        "steps_total": 11,
        "narrow_steps_total": 5,
        "step_seconds_total": 1.5,
        "host_seconds_total": 0.25,
        "prefix_cache_queries_total": 90,
        "prefix_cache_hits_total": 64,
        "num_preemptions_total": 4,
        "cache_leaks_total": 6,
        "compilations_after_ready_total": 0,
        "time_to_first_token_seconds_count": 4,
        "inter_token_latency_seconds_count": 2 + 2 * 8 + 3,
        "e2e_request_latency_seconds_count": 4,
        "request_queue_time_seconds_count": 4,
        "request_queue_time_seconds_sum": 4 * 0.25,
        "request_prefill_time_seconds_sum": 4 * 0.5,
        "request_decode_time_seconds_count": 4,
        "request_prompt_tokens_sum": 4 * len(TOKENIZER.encode("Say")),
        "request_generation_tokens_sum": 3 + 2 * 9 + 4,
    }
    states = {state: value for (name, state), value in found.items() if name == "jaxgen_kv_cache_blocks_by_state"}
    assert states == {"used": 2, "cached": 5, "free": 1}
    assert found["jaxgen_http_responses_total", "200"] == 3
    assert {name: found[f"jaxgen_{name}", ""] for name in expected} == expected
    finished = {reason: value for (name, reason), value in found.items() if name == "jaxgen_request_success_total"}
    assert finished == {"stop": 2, "length": 2, "abort": 0, "error": 0, "refused": 0}


def test_snapshots_of_a_model_with_states() -> None:
    snapshots = SnapshotStats(total=8, held=5, taken=9, evicted=4, recomputed_tokens=70)
    with client_of(fake_engine(numbers=EngineStats(snapshots=snapshots))) as client:
        found = samples(client.get("/metrics").text)
    assert {name: value for (name, _), value in found.items() if name.startswith("jaxgen_state_")} == {
        "jaxgen_state_snapshots_max": 8,
        "jaxgen_state_snapshots": 5,
        "jaxgen_state_snapshots_taken_total": 9,
        "jaxgen_state_snapshots_evicted_total": 4,
        "jaxgen_state_recomputed_total": 70,
    }
    with client_of(fake_engine()) as client:
        assert "jaxgen_state_" not in client.get("/metrics").text


def test_drafts_and_which_of_them_were_right() -> None:
    """By vLLM's names, and nothing of an engine without drafts."""
    drafts = SpeculationStats(drafts=3, draft_tokens=8, accepted_tokens=5, accepted_by_place=(3, 2))
    with client_of(fake_engine(numbers=EngineStats(speculation=drafts))) as client:
        found = samples(client.get("/metrics").text)
        assert client.get("/capabilities").json()["speculative_decoding"] is True
    assert {key: value for key, value in found.items() if key[0].startswith("jaxgen_spec_decode_")} == {
        ("jaxgen_spec_decode_num_drafts_total", ""): 3,
        ("jaxgen_spec_decode_num_draft_tokens_total", ""): 8,
        ("jaxgen_spec_decode_num_accepted_tokens_total", ""): 5,
        ("jaxgen_spec_decode_num_accepted_tokens_per_pos_total", "0"): 3,
        ("jaxgen_spec_decode_num_accepted_tokens_per_pos_total", "1"): 2,
    }
    with client_of(fake_engine()) as client:
        assert "jaxgen_spec_decode_" not in client.get("/metrics").text


def test_blocks_of_each_kind_of_cache_where_there_are_several() -> None:
    window = KindStats(name="window 16", blocks_total=4, blocks_free=3, blocks_cached=1)
    numbers = EngineStats(blocks_total=8, kinds=(KindStats(name="full", blocks_total=8), window))
    with client_of(fake_engine(numbers=numbers)) as client:
        found = samples(client.get("/metrics").text)
    name = "jaxgen_kv_cache_blocks_by_kind"
    assert {state: value for (family, state), value in found.items() if family == name} == {
        "fullused": 8,
        "fullcached": 0,
        "fullfree": 0,
        "window 16used": 1,
        "window 16cached": 1,
        "window 16free": 2,
    }
    with client_of(fake_engine()) as client:
        assert name not in client.get("/metrics").text


def test_routers_learn_the_shape_of_the_cache_once_it_is_known() -> None:
    with client_of(fake_engine(state=EngineStatus("starting"))) as client:
        text = client.get("/metrics").text
    assert "jaxgen_num_requests_running" in text
    assert "jaxgen_cache_config_info{" not in text


def test_metrics_count_failures_apart() -> None:
    async def fail(request: Request, index: int) -> None:
        raise RuntimeError("no")

    with client_of(fake_engine(pace=fail)) as client:
        client.post("/v1/completions", json=body())
        found = samples(client.get("/metrics").text)
    assert found["jaxgen_request_success_total", "error"] == 1
    assert found["jaxgen_e2e_request_latency_seconds_count", ""] == 0


def test_two_apps_in_one_process_count_apart() -> None:
    first, second = fake_engine(), fake_engine(model=ModelInfo(MODEL, 128, 400))
    with client_of(first) as one, client_of(second) as other:
        one.post("/v1/completions", json=body())
        assert samples(one.get("/metrics").text)["jaxgen_request_success_total", "length"] == 1
        assert samples(other.get("/metrics").text)["jaxgen_request_success_total", "length"] == 0


def test_an_answer_that_ends_with_calls_counts_as_one_that_stopped() -> None:
    classes = (ServiceClass(name="priority", first_token_seconds=9.0),)
    fields = {"model": MODEL, "messages": [HI], "tools": [F, WEATHER], "service_tier": "priority"}
    with client_of(tool_engine("hermes", written("hermes", [PARIS])), ServerConfig(service_classes=classes)) as client:
        answer = client.post(PATH, json=fields)
        found = samples(client.get("/metrics").text)
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert found["jaxgen_request_success_total", "stop"] == 1
    assert found["jaxgen_e2e_request_latency_seconds_count", ""] == 1
    assert found["jaxgen_service_class_requests_total", "keptpriority"] == 1
    finished = {label for name, label in found if name == "jaxgen_request_success_total"}
    assert finished == {"stop", "length", "abort", "error", "refused"}


def timed(monkeypatch: pytest.MonkeyPatch, service: ServiceClass, *tokens: float) -> Metrics:
    """Of one request that arrived at 10, whose tokens came at these times and which ended with the last of them."""
    metrics = Metrics(fake_engine())
    timer = RequestTimer(metrics, 10.0, Request("r", (1, 2, 3), SamplingParams(), service=service))
    clock = iter((*tokens, tokens[-1]))
    monkeypatch.setattr("jaxgen.server.metrics.metrics.perf_counter", lambda: next(clock))
    for _ in tokens:
        timer.observe(TokenEvent("r", 5))
    timer.finish("length")
    return metrics


def test_times_are_to_the_first_token_and_then_from_one_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = timed(monkeypatch, DEFAULT_CLASS, 12.0, 12.5, 13.75)
    sums = {
        "time_to_first_token_seconds": 2.0,
        "inter_token_latency_seconds": 0.5 + 1.25,
        "request_decode_time_seconds": 1.75,
        "e2e_request_latency_seconds": 3.75,
    }
    found = {name: metrics.registry.get_sample_value(f"jaxgen_{name}_sum", {"model_name": MODEL}) for name in sums}
    assert found == sums


@pytest.mark.parametrize(("target", "outcome"), [(0.25 + 2 / 17 - 1e-6, "late_token"), (0.25 + 2 / 17 + 1e-6, "kept")])
def test_a_time_between_tokens_is_held_against_an_average(
    monkeypatch: pytest.MonkeyPatch, target: float, outcome: str
) -> None:
    """Of 16 tokens, exponentially weighted: of one time of 0.25 and one that is 1 s longer, 0.25 + 2 / 17."""
    service = ServiceClass(name="even", inter_token_seconds=target)
    metrics = timed(monkeypatch, service, 11.0, 11.25, 12.5, 12.5)
    labels = {"model_name": MODEL, "service_class": "even", "outcome": outcome}
    assert metrics.registry.get_sample_value("jaxgen_service_class_requests_total", labels) == 1
