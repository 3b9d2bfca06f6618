"""A checkpoint without a head, as models of embeddings have it: it loads, embeds, and refuses to continue texts."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from starlette.testclient import TestClient
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from jaxgen import LLM, SamplingParams
from jaxgen.assembly.load_engine import load_engine
from jaxgen.core.config import EngineOptions
from jaxgen.core.errors import ConfigError, RequestRefusedError
from jaxgen.core.model_info import ChatFormat, Pooling
from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.cli import main
from jaxgen.weights.convert.command import convert
from jaxgen.weights.families.registry import ARCHITECTURES, HEADLESS, OF_MORE_THAN_TEXT
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from jaxgen.weights.summary import summarize
from tests.support.goldens import OF_FAMILIES, bits, copy_golden

FILE = "model.safetensors"
CHAT = ChatFormat("{{ messages }}", {})
REFUSED = "has no head (lm_head.weight), so it gives embeddings alone"


def behead(directory: Path, *, prefix: bool = False, **config: Any) -> Path:
    """Take the head from a checkpoint, and the prefix of its tensors unless ``prefix`` stays."""
    tensors: dict[str, Any] = {}
    for file in sorted(directory.glob("model*.safetensors*")):
        tensors |= load_file(file) if file.suffix == ".safetensors" else {}
        file.unlink()
    kept = {name: value for name, value in tensors.items() if name.partition(".")[0] not in ("lm_head", "embed_out")}
    save_file({name if prefix else name.partition(".")[2]: value for name, value in kept.items()}, directory / FILE)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return directory


def tiny(directory: Path, **config: Any) -> Path:
    make_tiny_checkpoint(directory, **config)
    return directory


def test_names_without_a_head_are_those_of_transformers() -> None:
    """Of models that also read images that of the text."""
    served = {kind: name for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name in ARCHITECTURES}
    named = {MODEL_MAPPING_NAMES[kind]: name for kind, name in served.items()}
    assert {kind: name for kind, name in named.items() if kind not in OF_MORE_THAN_TEXT} == HEADLESS


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_the_bare_decoder_of_each_family_loads(name: str, tmp_path: Path) -> None:
    whole = copy_golden(name, tmp_path / "whole")
    config = load_model_config(whole)
    expected = {path: bits(value) for path, value in load_params(whole, config, progress=False).items()}
    tied = "lm_head.weight" not in expected
    bare = behead(shutil.copytree(whole, tmp_path / "bare"))
    found = load_model_config(bare)
    assert found.generates == tied, "a tied head is the embedding, which is there"
    params = load_params(bare, found, progress=False)
    assert {path: bits(value) for path, value in params.items()} == {
        path: value for path, value in expected.items() if not path.startswith("lm_head.")
    }
    (architecture,) = json.loads((whole / "config.json").read_text())["architectures"]
    (headless,) = [one for one, other in HEADLESS.items() if other == architecture]
    assert not load_model_config(behead(bare, prefix=True, architectures=[headless])).generates


def test_a_head_that_is_missing_elsewhere_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names with their prefix are those of a model with a head."""
    problem = summarize(behead(tiny(tmp_path / "model"), prefix=True)).problem
    assert "the tensor lm_head.weight is missing from the safetensors files (or tie_word_embeddings in" in problem
    assert "such as Qwen3Model, which gives embeddings alone" in problem
    edited = behead(tmp_path / "model", prefix=True, architectures=["LlamaModel"])
    assert (summarize(edited).problem, summarize(edited).generates) == ("", False)
    assert main(["models", str(edited)]) == 0
    assert capsys.readouterr().out.endswith(": supported, for embeddings alone\n")


def test_a_tensor_that_is_missing_is_still_named(tmp_path: Path) -> None:
    directory = behead(tiny(tmp_path / "model"))
    tensors = load_file(directory / FILE)
    del tensors["norm.weight"]
    save_file(tensors, directory / FILE)
    assert "the tensor model.norm.weight is missing" in summarize(directory).problem


def test_a_conversion_has_no_head_either(tmp_path: Path) -> None:
    source = behead(tiny(tmp_path / "model", architectures=["Qwen3ForCausalLM"]))
    convert(str(source), tmp_path / "converted", progress=False)
    assert json.loads((tmp_path / "converted" / "config.json").read_text())["architectures"] == ["Qwen3Model"]
    config = load_model_config(tmp_path / "converted")
    assert config == load_model_config(source)
    assert not config.generates
    found = load_params(tmp_path / "converted", config, progress=False)
    expected = load_params(source, config, progress=False)
    assert {path: bits(value) for path, value in found.items()} == {k: bits(v) for k, v in expected.items()}
    assert summarize(tmp_path / "converted").problem == ""


def test_the_start_says_what_it_makes_of_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = behead(tiny(tmp_path / "model"))
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    with caplog.at_level("INFO"):
        load_engine(str(directory), options=EngineOptions(max_model_len=128), pooling="last")
    said = [one.getMessage() for one in caplog.records]
    assert f"{directory} has no head (lm_head.weight): it is served for embeddings alone, pooled by: last" in said
    assert [line for line in said if "max_seq_length is 16" in line]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    """A model, and the same without its head."""
    folder = tmp_path_factory.mktemp("headless")
    whole = tiny(folder / "whole", architectures=["Qwen3ForCausalLM"])
    bare = behead(shutil.copytree(whole, folder / "bare"))
    options: dict[str, Any] = {"max_model_len": 512, "token_budget": 32, "max_num_seqs": 8}
    with LLM(str(whole), **options) as one, LLM(str(bare), chat_template="plain", **options) as other:
        yield one, other


def test_embeddings_are_those_of_the_whole_model(both: tuple[LLM, LLM]) -> None:
    texts = ["def main():", "import os", "x" * 200]
    assert np.array_equal(both[0].embed(texts), both[1].embed(texts))


def test_it_continues_no_text(both: tuple[LLM, LLM]) -> None:
    """By no way, and the next embedding is as before."""
    whole, bare = both
    before = bare.embed(["a text"])
    assert whole.generate(["def"], SamplingParams(max_tokens=2))
    with pytest.raises(RequestRefusedError, match="has no head") as refused:
        bare.generate(["def"], SamplingParams(max_tokens=2))
    assert refused.value.param == "model"
    scored = SamplingParams(max_tokens=0, prompt_logprobs=1)
    for request in (Request("q", (5,), SamplingParams()), Request("s", (5,), scored, pooling=Pooling.MEAN)):
        with pytest.raises(RequestRefusedError, match="has no head"):
            asyncio.run(bare.engine.quote(request))
    assert np.array_equal(bare.embed(["a text"]), before)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": "def", "max_tokens": 2}),
        ("/v1/responses", {"input": "def", "max_output_tokens": 16}),
    ],
)
def test_its_routes_say_so(both: tuple[LLM, LLM], route: str, body: dict[str, Any], stream: bool) -> None:
    engine = both[1].engine
    client = TestClient(create_app(engine))
    name = engine.model.name
    answer = client.post(route, json={"model": name, "stream": stream, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert f"the model {name} {REFUSED}: ask /v1/embeddings, or LLM.embed" in error["message"]
    assert client.get("/capabilities").json()["generates"] is False
    assert client.post("/v1/embeddings", json={"model": name, "input": "def"}).status_code == 200


def test_a_directory_without_weights_is_taken_to_have_a_head(tmp_path: Path) -> None:
    """As --load-format dummy has it; damaged files are named by what loads them."""
    directory = tiny(tmp_path / "model")
    (directory / FILE).unlink()
    assert load_model_config(directory).generates
    (directory / FILE).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert load_model_config(directory).generates
    with pytest.raises(ConfigError, match=FILE):
        load_params(directory, load_model_config(directory), progress=False)
