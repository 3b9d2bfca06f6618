"""--load-format dummy: a model of random weights from config.json and a tokenizer alone."""

import json
from inspect import unwrap
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen import LLM, SamplingParams
from jaxgen.assembly.find_model import find_model
from jaxgen.assembly.parameters import weight_files
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.core.config import HubOptions, LoadFormat
from jaxgen.core.errors import ConfigError
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat, Part
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import this_cpu
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.models.dummy import dummy_params
from jaxgen.models.placement import abstract_packed_params
from jaxgen.tools.plan import plan_model
from jaxgen.weights import load, resolve
from jaxgen.weights.encodings.weight_formats import INT4, INT8, with_formats
from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint, make_tiny_outline
from tests.support.goldens import GOLDENS

SIZES: dict[str, Any] = {"max_model_len": 512, "token_budget": 32, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="module")
def outline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without its weights."""
    outline = tmp_path_factory.mktemp("outline")
    make_tiny_outline(outline)
    return outline


def test_a_model_without_weights_answers(outline: Path) -> None:
    with LLM(str(outline), load_format="dummy", **SIZES) as llm:
        (answer,) = llm.generate(["def main():"], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
        assert len(answer.tokens) == 8
        assert llm.digest_parts["weights"] == digest(outline, "dummy")


def digest(directory: Path, load_format: LoadFormat) -> str:
    return weight_files(resolve_on_device(str(directory), load_format=load_format), progress=False).digest


def test_random_weights_have_an_identity_of_their_own(directory: Path, outline: Path) -> None:
    assert digest(outline, "dummy") == digest(directory, "dummy") != digest(directory, "auto")
    model = load.load_model_config(directory)
    first, second = (jax.tree.leaves(dummy_params(model, REFERENCE)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_weights_are_needed_without_the_flag(outline: Path) -> None:
    with pytest.raises(ConfigError, match="has no weights"), LLM(str(outline), **SIZES):
        pass


def test_other_formats_are_refused(directory: Path) -> None:
    unchecked: Any = unwrap(find_model)  # as callers have it, without the checks of types that tests add
    with pytest.raises(ConfigError, match=r"--load-format must be auto or dummy, not 'safetensors'"):
        unchecked(str(directory), "auto", "auto", this_cpu(), load_format="safetensors")


def test_quantised_weights_without_files_are_refused(outline: Path, tmp_path: Path) -> None:
    config = json.loads((outline / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="take it out, and choose by --quantization"):
        find_model(str(tmp_path), "auto", "auto", this_cpu(), load_format="dummy")


def test_no_weights_are_fetched_from_the_hub(outline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []

    def snapshot_download(_: str, *, allow_patterns: list[str], **options: object) -> str:
        wanted.extend(allow_patterns)
        return str(outline)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(resolve, "_check_not_gguf", lambda *_: None)
    find_model("org/name", "auto", "auto", this_cpu(), HubOptions(), load_format="dummy")
    assert "*.json" in wanted
    assert not any("safetensors" in name for name in wanted)


def test_a_plan_needs_no_weights(outline: Path) -> None:
    planned = plan_model(str(outline), load_format="dummy")
    assert (planned.stored.num_files, planned.plan.config is not None) == (0, True)
    with pytest.raises(ConfigError, match="has no weights"):
        plan_model(str(outline))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_parameters_have_the_layout_of_the_kernels_and_are_finite(name: str) -> None:
    model = load.load_model_config(GOLDENS / name)
    params = dummy_params(model, REFERENCE)
    found, wanted = (jax.tree.flatten(tree) for tree in (params, abstract_packed_params(model, REFERENCE)))
    assert str(found[1]) == str(wanted[1])
    assert [(x.shape, x.dtype) for x in found[0]] == [(x.shape, x.dtype) for x in wanted[0]]
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(params))
    matrices = [x for x in jax.tree.leaves(params) if x.ndim > 2]
    assert all(float(jnp.std(x.astype(jnp.float32))) > 0 for x in matrices)


@pytest.mark.parametrize(
    "form",
    [
        WeightFormat(bits=4, group=32, zeros=True),
        WeightFormat(bits=8, group=None, floats=True),
        WeightFormat(bits=4, group=32, floats=True),
        MixedFormat.of_layers([[Part(INT8, 32), Part(INT4, 32)], [Part(INT4, 64)]]),
    ],
)
def test_codes_are_of_finite_numbers_of_one_size(form: AnyFormat) -> None:
    """As numbers the kernels' own product reads them: rows of unit length, within a tenth."""
    model = load.load_model_config(GOLDENS / "llama")
    path = "layers.mlp.down.weight"
    shape = next(one.shape for one in parameters(model) if one.path == path)
    params = dummy_params(with_formats(model, {path: form}), REFERENCE_GPU)
    eye = jnp.eye(shape[-1], dtype=jnp.float32)
    numbers = np.asarray(params[path].at(0).product(eye, jnp.int32(len(eye))))
    assert np.isfinite(numbers).all()
    assert np.sqrt((numbers**2).sum(0)).mean() == pytest.approx(1, rel=0.1)
