"""With drafts every event is the same, to the bit, whatever a request asks for and however often drafts are right."""

import random
from dataclasses import replace
from functools import cache
from itertools import batched

import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.speculation import NgramConfig, SuffixConfig
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.scheduling.drafts import Drafter
from jaxgen.speculation.lookup import LookupDrafter
from jaxgen.speculation.suffix import SuffixDrafter
from tests.engine.test_grammars import EOS, MODEL, constrained, run, tokenizer
from tests.engine.test_jump_ahead import what_was_told
from tests.support.engines import compiled_step, engine_config, params_of, request, tokens
from tests.support.replayed import Replay

CONFIG = replace(engine_config(token_budget=32), run_ahead=False)
DRAFTS = replace(CONFIG, speculation=NgramConfig())
CROWDED = replace(
    DRAFTS, cache=replace(DRAFTS.cache, num_blocks=8), scheduler=replace(DRAFTS.scheduler, max_model_len=64)
)


def make_engine(config: EngineConfig, drafter: Drafter | None = None) -> Engine:
    compiled = compiled_step(MODEL, config)
    return build_engine(MODEL, config, params_of(MODEL), frozenset({EOS}), compiled=compiled, drafter=drafter)


@cache
def drawn() -> tuple[Request, ...]:
    """Requests with every field that bears on what is sampled."""
    draw = random.Random(5)
    optional: dict[str, object] = {
        "temperature": 0.9,
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.7,
        "presence_penalty": -1.0,
        "top_k": 3,
        "top_p": 0.7,
        "logprobs": 4,
        "logit_bias": {40: 3.0, 41: -5.0},
        "allowed_token_ids": (EOS, *range(3, 400)),
        "stop_token_ids": (44,),
        "min_tokens": 9,
    }
    made = list[Request]()
    for index in range(8):
        some = {name: value for name, value in optional.items() if draw.random() < 0.5}
        made.append(
            request(f"{index}", tokenizer().encode("more " * (index % 4) + "of it"), max_tokens=30, seed=index, **some)
        )
    made += [
        constrained("grammar", "(the fox|a dog|[a-c]{2,9}; )+", 3),
        constrained("words", "[a-z ]+", 4, bad_words=("an",)),
    ]
    made.append(
        request("greedy", tokenizer().encode("again and again"), max_tokens=40, temperature=0.0, ignore_eos=True)
    )
    return tuple(made)


def told(engine: Engine) -> dict[str, list[TokenEvent]]:
    found: dict[str, list[TokenEvent]] = {}
    for some in batched(drawn(), 2):  # the other two rows are for drafts
        found |= {name: what_was_told(events) for name, events in run(engine, list(some)).items()}
    assert engine.stats().blocks_free == engine.stats().blocks_total
    return found


@cache
def without_drafts() -> dict[str, list[TokenEvent]]:
    return told(make_engine(CONFIG))


def answers() -> dict[str, list[int]]:
    return {name: tokens(events) for name, events in without_drafts().items()}


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("config", "right"),
    [
        pytest.param(DRAFTS, (True, True, False, True), id="often right"),
        pytest.param(DRAFTS, (True,), id="right", marks=pytest.mark.full),
        pytest.param(DRAFTS, (False,), id="wrong", marks=pytest.mark.full),
        pytest.param(CROWDED, (True, False), id="often right, crowded", marks=pytest.mark.full),
    ],
)
def test_every_event_is_the_same_with_drafts(config: EngineConfig, right: tuple[bool, ...]) -> None:
    drafter = Replay(answers(), right)
    engine = make_engine(config, drafter)
    assert told(engine) == without_drafts()
    drafted, accepted = map(sum, zip(*drafter.told, strict=True))
    assert drafted >= 60
    assert (accepted == drafted, accepted == 0) == (all(right), not any(right))
    assert (engine.stats().preemptions > 0) is (config is CROWDED)


@pytest.mark.full
@pytest.mark.parametrize("drafter", [LookupDrafter(NgramConfig()), SuffixDrafter(SuffixConfig())])
def test_every_event_is_the_same_with_drafts_of_what_came_before(drafter: Drafter) -> None:
    engine = make_engine(DRAFTS, drafter)
    rounds = []
    for _ in range(2):
        assert told(engine) == without_drafts()
        found = engine.stats().speculation
        assert found is not None
        assert found.draft_tokens >= found.accepted_tokens > 0
        rounds.append(found.accepted_tokens)
    assert (rounds[1] > 3 * rounds[0]) is isinstance(drafter, SuffixDrafter), "it knows the answers"
