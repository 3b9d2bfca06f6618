"""The engine on a tiny random model: every schedule gives the same answers, and nothing is compiled twice."""

import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.errors import RequestRefusedError, WouldBeLateError
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.service_class import ServiceClass
from jaxgen.engine.start.runners import program_texts
from jaxgen.models.kv_cache import cache_shape
from jaxgen.models.model import abstract_params
from jaxgen.runner.compilation import num_compilations
from jaxgen.runner.row_state import init_rows
from jaxgen.runner.separate_step import SeparateStep
from tests.support.engines import (
    EOS,
    LLAMA,
    compiled_step,
    engine_config,
    make_engine,
    params_of,
    request,
    run,
    tokens,
)
from tests.support.paths import ROOT

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, LLAMA.vocab_size, size=n).tolist() for n in (1, 5, 16, 17, 33, 70, 120)]


def requests(**params: object) -> list[Request]:
    return [request(f"r{i}", prompt, **{"max_tokens": 12, **params}) for i, prompt in enumerate(PROMPTS)]


def answers(events: dict[str, list[TokenEvent]]) -> list[list[int]]:
    return [tokens(events[f"r{i}"]) for i in range(len(PROMPTS))]


@cache
def alone(**params: object) -> list[list[int]]:
    """The answers in engines that compute the whole prompt in one step, and nothing else beside it."""
    config = engine_config(token_budget=160, max_num_seqs=1, block_size=64)
    return [tokens(run(make_engine(config=config), [one])[one.request_id]) for one in requests(**params)]


@pytest.mark.shipped
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(engine_config(), id="mixed batches, chunked prompts"),
        pytest.param(engine_config(num_blocks=32), id="too few blocks for all"),
        pytest.param(engine_config(token_budget=4, max_num_seqs=3, block_size=1, num_blocks=256), id="tiny steps"),
        pytest.param(engine_config(block_size=48, num_blocks=9, token_budget=64, max_num_seqs=8), id="odd blocks"),
        pytest.param(replace(engine_config(num_blocks=32), run_ahead=False), id="few blocks, one step after another"),
    ],
)
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7, "top_p": 0.9}])
def test_any_schedule_gives_the_same_tokens(config: EngineConfig, params: dict[str, object]) -> None:
    engine = make_engine(config=config)
    assert answers(run(engine, requests(ignore_eos=True, **params))) == alone(ignore_eos=True, **params)
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_penalties_survive_preemption() -> None:
    params: dict[str, object] = {
        "temperature": 0.0,
        "max_tokens": 24,
        "ignore_eos": True,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.3,
    }
    engine = make_engine(config=engine_config(num_blocks=32))
    events = run(engine, requests(**params))
    assert engine.stats().preemptions > 0
    assert answers(events) == alone(**params)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "logprobs": 5},
        {"seed": 3, "top_p": 0.9, "repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    ],
    ids=["greedy", "penalised"],
)
def test_a_cached_prefix_changes_no_bit_of_the_answer(params: dict[str, object]) -> None:
    """The same prompt again, an answer continued, and the same under another salt."""
    engine = make_engine()
    first = run(engine, [request("first", PROMPTS[6], max_tokens=20, ignore_eos=True, **params)])["first"]
    assert first[0].cached_tokens == 0
    again = [request(f"again-{i}", PROMPTS[6], max_tokens=20, ignore_eos=True, **params) for i in range(3)]
    salted = replace(request("salted", PROMPTS[6], max_tokens=20, ignore_eos=True, **params), cache_salt="other")
    events = run(engine, [*again, salted])
    for one in (*again, salted):
        found = [replace(event, request_id="first", cached_tokens=None) for event in events[one.request_id]]
        assert found == [replace(event, cached_tokens=None) for event in first], one.request_id
    assert [events[one.request_id][0].cached_tokens for one in (*again, salted)] == [119, 119, 119, 0]
    assert all(event.cached_tokens is None for event in events["again-0"][1:])
    stats = engine.stats()
    assert (stats.prefix_hits, stats.blocks_free) == (3 * 119, stats.blocks_total)


def test_without_prefix_caching_nothing_is_kept() -> None:
    config = engine_config()
    engine = make_engine(config=replace(config, scheduler=replace(config.scheduler, prefix_caching=False)))
    for name in ("one", "two"):
        (event, *_) = run(engine, [request(name, PROMPTS[6])])[name]
        assert event.cached_tokens == 0
    assert engine.stats().blocks_cached == 0


def test_a_step_is_dispatched_before_the_one_before_it_is_read() -> None:
    engine = make_engine()
    engine.add(request("r", PROMPTS[1], max_tokens=3, ignore_eos=True))
    events = [engine.step() for _ in range(4)]
    assert [len(found) for found in events] == [0, 1, 1, 1]
    assert not engine.has_work


def test_an_engine_that_does_not_run_ahead_gives_a_step_s_tokens_before_it_plans_the_next() -> None:
    engine = make_engine(config=replace(engine_config(), run_ahead=False))
    engine.add(request("a", PROMPTS[1], max_tokens=3, ignore_eos=True))
    first = engine.step()
    engine.add(request("b", PROMPTS[1], max_tokens=2, ignore_eos=True))
    events = [first, engine.step(), engine.step()]
    assert [[event.request_id for event in found] for found in events] == [["a"], ["a", "b"], ["a", "b"]]
    assert (engine.has_work, engine.stats().steps) == (False, 3)


def test_no_compilation_after_ready() -> None:
    """Prompts of 1 to 3 budgets, all row counts, greedy and sampled, log-probabilities on and off, aborts."""
    engine = make_engine()
    before = num_compilations()
    todo = [
        request("greedy", PROMPTS[0], temperature=0.0),
        request("sampled", PROMPTS[4], temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, max_tokens=30),
        request("logprobs", PROMPTS[3], logprobs=5, prompt_logprobs=3, max_tokens=5),
        request("penalties", PROMPTS[2], presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
        request("bias", PROMPTS[1], logit_bias={5: 10.0, 6: -100.0}, min_tokens=4),
        request("aborted", PROMPTS[6], max_tokens=50),
        request("prompt only", PROMPTS[2], max_tokens=0, prompt_logprobs=0),
        request("nothing", PROMPTS[2], max_tokens=0),
        *requests(),
    ]

    def abort(step: int) -> None:
        if step == 5:
            assert engine.abort("aborted")

    events = run(engine, todo, abort)
    assert set(events) == {one.request_id for one in todo} - {"aborted"} | (set(events) & {"aborted"})
    assert num_compilations() == before
    assert engine.stats().compilations_after_ready == 0


def test_the_step_aliases_the_whole_cache_and_copies_none_of_it() -> None:
    config = engine_config(num_blocks=4096, max_model_len=64)
    compiled = compiled_step(LLAMA, config)
    cache_bytes = 4 * int(np.prod(cache_shape(LLAMA, config.cache)))
    rows_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(init_rows(config, LLAMA.vocab_size)))
    products_bytes = 4 * config.scheduler.max_num_seqs * LLAMA.vocab_size
    assert cache_bytes > 10 * 2**20
    assert compiled.aliased_bytes == cache_bytes + rows_bytes + products_bytes
    assert compiled.temporary_bytes < cache_bytes / 10


def test_abort_frees_everything_and_ends_silently() -> None:
    engine = make_engine()
    for one in requests(max_tokens=50):
        engine.add(one)
    for _ in range(4):
        engine.step()
    for one in requests():
        engine.abort(one.request_id)
    assert not engine.has_work
    assert engine.stats().blocks_free == engine.stats().blocks_total
    assert not engine.abort("r0")


def test_eos_ends_unless_ignored_and_min_tokens_masks_it() -> None:
    bias = {EOS: 100.0}
    ends = request("ends", PROMPTS[1], max_tokens=9, temperature=0.0, logit_bias=bias)
    ignores = request("ignores", PROMPTS[1], max_tokens=9, temperature=0.0, logit_bias=bias, ignore_eos=True)
    waits = request("waits", PROMPTS[1], max_tokens=9, temperature=0.0, logit_bias=bias, min_tokens=3)
    stops = request("stops", PROMPTS[1], max_tokens=9, temperature=0.0, logit_bias={7: 100.0}, stop_token_ids=(7,))
    events = run(make_engine(), [ends, ignores, waits, stops])
    assert tokens(events["ends"]) == [EOS]
    assert events["ends"][-1].finish_reason is FinishReason.STOP
    assert tokens(events["ignores"]) == [EOS] * 9
    assert events["ignores"][-1].finish_reason is FinishReason.LENGTH
    assert len(tokens(events["waits"])) == 4
    assert EOS not in tokens(events["waits"])[:3]
    assert tokens(events["waits"])[3] == EOS
    assert tokens(events["stops"]) == [7]
    assert events["stops"][-1].finish_reason is FinishReason.STOP


def test_prompt_logprobs_are_those_of_generation() -> None:
    """What a token's log-probability was when generated is what it is as part of a prompt, over any chunking."""
    first = run(make_engine(), [request("a", PROMPTS[4], max_tokens=20, logprobs=3, temperature=0.0, ignore_eos=True)])[
        "a"
    ]
    generated = [event.logprobs for event in first]
    again = request("b", PROMPTS[4] + tokens(first), max_tokens=0, prompt_logprobs=3)
    (event,) = run(make_engine(), [again])["b"]
    assert event.prompt_logprobs is not None
    assert event.prompt_logprobs[0] is None
    assert len(event.prompt_logprobs) == len(PROMPTS[4]) + 20
    # The first of these are of one chunk, the others of the next: one is told by the last token of the chunk before.
    for was, now in zip(generated, event.prompt_logprobs[-20:], strict=True):
        assert was is not None
        assert now is not None
        assert (was.token, [t for t, _ in was.top]) == (now.token, [t for t, _ in now.top])
        assert now.logprob == pytest.approx(was.logprob, abs=1e-4)
        assert was.logprob == was.top[0][1], "a greedy token is the most probable one"


def test_prompt_logprobs_survive_preemption() -> None:
    config = engine_config(num_blocks=32)
    engine = make_engine(config=config)
    todo = requests(temperature=0.0, max_tokens=60, ignore_eos=True, prompt_logprobs=1)
    events = run(engine, todo)
    assert engine.stats().preemptions > 0
    for one in todo:
        told = [event for event in events[one.request_id] if event.prompt_logprobs is not None]
        assert told == events[one.request_id][:1]
        assert told[0].prompt_logprobs is not None
        assert [entry and entry.token for entry in told[0].prompt_logprobs] == [None, *one.prompt[1:]]


@pytest.mark.parametrize(
    ("params", "prompt", "names"),
    [
        ({"max_tokens": 300}, [5], "max_tokens"),
        ({}, [LLAMA.vocab_size], "prompt"),
        ({}, [-1], "prompt"),
        ({"logit_bias": {LLAMA.vocab_size: 1.0}}, [5], "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(9), 1.0)}, [5], "logit_bias"),
        ({"stop_token_ids": (LLAMA.vocab_size,)}, [5], "stop_token_ids"),
        ({"stop_token_ids": tuple(range(200))}, [5], "stop_token_ids"),
    ],
)
def test_a_request_that_can_never_run_is_refused(params: dict[str, object], prompt: list[int], names: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestRefusedError, match=names) as refused:
        engine.add(request("bad", prompt, **params))
    assert refused.value.param == names
    assert not engine.has_work


def test_unseeded_requests_differ_and_seeded_repeat() -> None:
    prompt = PROMPTS[2]
    todo = [request(f"u{i}", prompt, ignore_eos=True) for i in range(3)]
    todo += [request(f"s{i}", prompt, ignore_eos=True, seed=-(2**63)) for i in range(2)]
    todo += [request(f"t{seed}", prompt, ignore_eos=True, seed=seed) for seed in (0, -(2**63) + 1)]
    events = run(make_engine(), todo)
    assert tokens(events["s0"]) == tokens(events["s1"])
    assert all(tokens(events[one.request_id]) != tokens(events["s0"]) for one in todo[-2:]), "all 64 bits count"
    assert len({tuple(tokens(events[f"u{i}"])) for i in range(3)}) == 3


def test_params_are_what_abstract_params_say() -> None:
    made = params_of(LLAMA)
    assert {path: (p.shape, p.dtype) for path, p in made.items()} == {
        path: (p.shape, p.dtype) for path, p in abstract_params(LLAMA).items()
    }


LEAVE = """
from dataclasses import replace
from tests.support.engines import LLAMA, engine_config, make_engine, request
model = replace(LLAMA, hidden_size=1024, intermediate_size=4096)
config = engine_config(token_budget=512, max_num_seqs=1, max_model_len=1024, num_blocks=128)
engine = make_engine(model=model, config=config)
engine.add(request("a", [5] * 512, max_tokens=2))
engine.step()
"""


@pytest.mark.full
def test_a_process_may_end_while_a_step_runs() -> None:
    """Full: a process compiles a step that takes long. XLA would abort it: the engine waits."""
    done = subprocess.run([sys.executable, "-c", LEAVE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_text_of_its_programs_can_be_had_for_a_digest() -> None:
    """An engine on a GPU has its digest of them, and its tests are without one."""
    (text,) = program_texts(compiled_step(LLAMA, engine_config()))
    assert text.startswith("HloModule jit_step")
    assert "\nENTRY " in text


TEXTS = {"layers": "HloModule layers", "GREEDY": "HloModule greedy", "DRAWN": None}


def test_each_program_of_a_gpus_step_has_a_text() -> None:
    """Each begins with a table of source files, which has no place in a digest."""
    step = object.__new__(SeparateStep)
    step._programs = {name: SimpleNamespace(as_text=lambda text=text: text) for name, text in TEXTS.items()}
    compiled = replace(compiled_step(LLAMA, engine_config()), run=step)
    first, second, third = program_texts(compiled)
    assert [first, second] == ["HloModule layers", "HloModule greedy"]
    assert third not in program_texts(compiled), "nothing says that a program without a text is equal to another"


def test_the_first_request_after_a_start_is_held_to_what_its_class_promises() -> None:
    engine = make_engine()
    impossible = ServiceClass(name="fast", first_token_seconds=1e-9)
    asked = replace(request("a", range(3, 103), max_tokens=2), service=impossible)
    with pytest.raises(WouldBeLateError, match="'fast' has a target of 1e-09 s for the first token"):
        engine.add(asked)
    with pytest.raises(WouldBeLateError, match="'fast'"):
        engine.quote(asked)
    assert not engine.has_work
