"""The two lists of longrope's factors: which holds is said at the start, and how far apart they are is printed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from jaxgen.assembly.find_model import longrope_note
from jaxgen.assembly.load_engine import load_engine
from jaxgen.core.config import CacheConfig, EngineConfig, EngineOptions, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.kernels.choice import REFERENCE
from jaxgen.models.model import Params
from jaxgen.models.placement import pack_params
from jaxgen.text.tokenizer import Tokenizer
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.default_model import DEMO
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.golden_runs import SMALL, logits_of_chunks, make_forward
from tests.support.goldens import GOLDENS, Golden
from tests.support.paths import ROOT

PHI3 = GOLDENS / "phi3_long"
"""A model with 32 positions originally, and 128 in all."""
Case = tuple[DecoderConfig, DecoderConfig, Params, list[list[int]], EngineConfig]


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (128, "longrope: all texts get the long factors, since up to 128 tokens are served; "),
        (33, "longrope: all texts get the long factors, since up to 33 tokens are served; "),
        (32, "longrope: all texts get the short factors, as by transformers, since at most 32 tokens are served; a "),
    ],
)
def test_the_list_that_holds_is_named_with_the_flag(served: int, expected: str) -> None:
    config = load_model_config(PHI3)
    note = longrope_note(config, served)
    assert note.startswith(expected)
    assert f"--max-model-len {'above ' if served == 32 else ''}32 gives" in note
    assert isinstance(config, DecoderConfig)
    (rope,) = config.within(served).positions.ropes
    assert (rope.factors == rope.short_factors) == ("short factors, as" in note), "what is said is what is computed"


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "opt_pre"])
def test_nothing_is_said_of_others(name: str) -> None:
    assert longrope_note(load_model_config(GOLDENS / name), 128) == ""


def test_nothing_is_said_where_both_lists_are_equal() -> None:
    """As of a Llama 3 that was a GGUF file."""
    config = load_model_config(PHI3)
    assert longrope_note(config.within(32), 32) == ""


def test_the_start_says_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}
    make_tiny_checkpoint(
        tmp_path,
        architectures=["Phi3ForCausalLM"],
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
    )
    for served in (64, 128):
        caplog.clear()
        with caplog.at_level("INFO"):
            load_engine(str(tmp_path), options=EngineOptions(max_model_len=served))
        assert longrope_note(load_model_config(tmp_path), served) in [one.getMessage() for one in caplog.records]


def golden() -> Case:
    config = load_model_config(PHI3, "float32")
    assert isinstance(config, DecoderConfig)
    prompts = np.random.default_rng(0).integers(0, config.vocab_size, (8, 32)).tolist()
    return config.within(32), config, load_params(PHI3, config, progress=False), prompts, SMALL


def demo() -> Case:
    """The embedded model with factors that it was not trained with, on a text of its kind."""
    config = load_model_config(DEMO, "float32")
    assert isinstance(config, DecoderConfig)
    (plain,) = config.positions.ropes
    half = config.head_dim // 2
    lists = ((1.0,) * half, tuple(map(float, np.geomspace(1.0, 8.0, half))))
    both = [replace(plain, kind="longrope", factors=factors) for factors in lists]
    short, long = (replace(config, positions=replace(config.positions, ropes=(rope,))) for rope in both)
    text = (ROOT / "jaxgen" / "core" / "decoder_config.py").read_text()
    ids = Tokenizer.from_directory(DEMO).encode(text, special=False)
    limits = EngineConfig(CacheConfig(16, 64), SchedulerConfig(32, 4, 256), seed=0, max_logit_bias=4)
    return (
        short,
        long,
        load_params(DEMO, config, progress=False),
        [ids[i : i + 120] for i in range(0, 960, 120)],
        limits,
    )


@pytest.mark.parametrize("case", [golden, pytest.param(demo, marks=pytest.mark.full)])  # two programs of a larger model
def test_how_far_apart_they_are(case: Callable[[], Case]) -> None:
    short, long, params, prompts, limits = case()
    one, other = (log_probabilities(config, params, prompts, limits) for config in (short, long))
    difference, divergence = np.abs(one - other).mean(), (np.exp(one) * (one - other)).sum(axis=-1).mean()
    same = (one.argmax(axis=-1) == other.argmax(axis=-1)).mean()
    print(  # noqa: T201
        f"{case.__name__}: {len(one)} positions, mean difference of log-probabilities {difference:.2f}, "
        f"mean KL divergence {divergence:.2f}, same most likely token {same:.2f}"
    )
    assert difference > 0.1
    assert same < 0.9


def log_probabilities(
    config: DecoderConfig, params: Params, prompts: list[list[int]], limits: EngineConfig
) -> npt.NDArray[np.float64]:
    """Return those [n, V] of all positions of the prompts."""
    forward, packed = make_forward(config, limits), pack_params(config, dict(params), REFERENCE)
    found = []
    for prompt in prompts:
        answer = Golden(prompt, [0], np.arange(len(prompt), dtype=np.int32), np.zeros((1, 1), np.float32), {})
        logits = logits_of_chunks(forward, config, packed, answer, limits).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        found.append(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))
    return np.concatenate(found)
