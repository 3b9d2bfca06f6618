"""LLM on the embedded tiny model: batches, streams, stop strings, and the same engine as an ASGI app."""

import asyncio
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from openai import OpenAI

import jaxgen
from jaxgen import LLM, SamplingParams
from jaxgen.assembly.find_model import find_model
from jaxgen.assembly.load_engine import load_engine
from jaxgen.core.errors import ConfigError, RequestRefusedError
from jaxgen.core.identity import Identity
from jaxgen.core.model_info import EmbeddingFormat, Pooling
from jaxgen.core.request import FinishReason
from jaxgen.core.sampling_params import NEUTRAL, SamplingDefaults
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.llm import Prompt
from jaxgen.runner.model_runner import device_info
from jaxgen.server.app import create_app
from jaxgen.weights.convert.command import convert
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.live_server import serve

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), max_model_len=512, token_budget=32, max_num_seqs=8) as llm:
        yield llm


def test_a_batch_equals_its_parts(llm: LLM) -> None:
    prompts: list[Prompt] = ["def main():", "import os", [5, 6, 7, 8], "x" * 60]
    together = llm.generate(prompts, GREEDY)
    assert [llm.generate([prompt], GREEDY)[0] for prompt in prompts] == together
    assert all(len(one.tokens) == 24 for one in together)
    assert all(one.finish_reason is FinishReason.LENGTH for one in together)
    assert len({one.text for one in together}) > 1


def test_text_is_the_decoded_tokens(llm: LLM) -> None:
    (one,) = llm.generate(["def main():"], GREEDY)
    assert one.text == llm.engine.tokenizer.decode(one.tokens)


def test_stream_joins_to_generate(llm: LLM) -> None:
    async def collect() -> list[str]:
        return [piece async for piece in llm.stream("def main():", GREEDY)]

    assert "".join(asyncio.run(collect())) == llm.generate(["def main():"], GREEDY)[0].text


def test_generate_works_inside_an_event_loop(llm: LLM) -> None:
    async def notebook() -> str:
        return llm.generate(["def main():"], GREEDY)[0].text

    assert asyncio.run(notebook()) == llm.generate(["def main():"], GREEDY)[0].text


def test_a_stop_string_ends_the_text_and_the_work(llm: LLM) -> None:
    (full,) = llm.generate(["def main():"], GREEDY)
    stop = full.text[8:11]
    (cut,) = llm.generate(
        ["def main():"], SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, stop=(stop,))
    )
    assert cut.text == full.text[: full.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert len(cut.tokens) < 24


def test_fields_for_the_text_and_its_tokens_are_kept_to(llm: LLM) -> None:
    (full,) = llm.generate(["def main():"], GREEDY)
    stop = full.text[8:11]
    (cut,) = llm.generate(["def main():"], replace(GREEDY, stop=(stop,), include_stop_str_in_output=True))
    assert cut.text == full.text[: full.text.index(stop) + len(stop)]
    (others,) = llm.generate(["def main():"], replace(GREEDY, bad_words=(stop,)))
    for spelled in (llm.engine.tokenizer.encode(text, special=False) for text in (stop, f" {stop}")):
        places = range(len(others.tokens) - len(spelled) + 1)
        assert all(others.tokens[place : place + len(spelled)] != tuple(spelled) for place in places)
    ids = tuple(token for token in range(260) if token != full.tokens[0])
    (allowed,) = llm.generate(["def main():"], replace(GREEDY, allowed_token_ids=ids))
    assert set(allowed.tokens) <= set(ids)
    tokens = llm.engine.tokenizer.encode("one def main():")
    kept = llm.generate(["one def main():"], replace(GREEDY, truncate_prompt_tokens=3))
    assert kept == llm.generate([tokens[-3:]], GREEDY)
    long = llm.generate([[5] * 10_000], replace(GREEDY, truncate_prompt_tokens=-1))
    assert len(long[0].tokens) == GREEDY.max_tokens


def test_leaving_a_stream_frees_its_blocks(llm: LLM) -> None:
    async def leave() -> None:
        long = SamplingParams(max_tokens=400, ignore_eos=True)
        async with aclosing(llm.stream("a", long)) as pieces:
            await anext(pieces)
        for _ in range(500):
            if llm.engine.stats().blocks_free == llm.engine.stats().blocks_total:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("blocks are still held")

    asyncio.run(leave())


def test_what_can_never_run_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestRefusedError, match="max_tokens"):
        llm.generate(["a", "b"], SamplingParams(max_tokens=10_000))


def test_bad_settings_are_named(directory: Path) -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs 9"):
        LLM(str(directory), max_num_seqs=9, token_budget=8)
    with pytest.raises(TypeError, match="no_such_option"):
        LLM(str(directory), no_such_option=1)
    with pytest.raises(ConfigError, match="nowhere"):
        LLM(str(directory / "nowhere"))


def test_the_engine_of_an_llm_is_served_as_an_app(llm: LLM) -> None:
    """The plugin: the same engine answers a program and an OpenAI client, with the same tokens."""
    with serve(create_app(llm.engine)) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        answer = client.completions.create(
            model=llm.engine.model.name,
            prompt="def main():",
            max_tokens=24,
            temperature=0.0,
            extra_body={"ignore_eos": True},
        )
    assert answer.choices[0].text == llm.generate(["def main():"], GREEDY)[0].text


def test_the_digest_is_that_of_its_parts_and_of_another_engine_of_an_equal_directory(
    llm: LLM, directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"max_model_len": 512, "token_budget": 32, "max_num_seqs": 8}
    options["num_blocks"] = llm.digest_parts["steps"]["num_blocks"]
    copy = shutil.copytree(directory, tmp_path / "copy")
    caplog.set_level(logging.INFO, "jaxgen.assembly.programs")
    with LLM(str(copy), **options) as other:
        assert other.digest == llm.digest == Identity(llm.digest_parts).digest != ""
        assert other.generate(["def main():"], GREEDY) == llm.generate(["def main():"], GREEDY)
        assert f"digest {other.digest}" in caplog.text
    assert str(tmp_path) not in json.dumps(dict(llm.digest_parts))


def test_texts_become_vectors_that_an_openai_client_gets_too(llm: LLM) -> None:
    """The client asks for base64 unless told otherwise."""
    prompts: list[Prompt] = ["def main():", "import os", [5, 6, 7, 8], "x" * 60]
    found = llm.embed(prompts)
    assert (found.shape, found.dtype) == ((4, llm.engine.model.embedding.size), np.float32)  # type: ignore[union-attr]
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)
    assert [llm.embed([prompt]).tobytes() for prompt in prompts] == [row.tobytes() for row in found]
    with serve(create_app(llm.engine)) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        formats: list[dict[str, Any]] = [{}, {"encoding_format": "float"}]
        for given in formats:
            answer = client.embeddings.create(model=llm.engine.model.name, input=texts, **given)
            assert [one.index for one in answer.data] == [0, 1, 2]
            vectors = np.array([one.embedding for one in answer.data], np.float32)
            assert vectors.tobytes() == found[[0, 1, 3]].tobytes()


def test_the_way_of_pooling_is_the_models_unless_chosen(directory: Path, tmp_path: Path) -> None:
    size = load_model_config(directory).output_size
    for choice, pooling in (("auto", Pooling.MEAN), ("last", Pooling.LAST)):
        assert load_engine(str(directory), pooling=choice).model.embedding == EmbeddingFormat(size, pooling)  # type: ignore[arg-type]
    other = shutil.copytree(directory, tmp_path / "other")
    (other / "modules.json").write_text("[]")
    with pytest.raises(ConfigError, match="--pooling"):
        load_engine(str(other))


def test_a_tokenizer_of_another_directory(directory: Path, tmp_path: Path) -> None:
    """It brings its chat template; the model's own files are not asked."""
    other = tmp_path / "words"
    other.mkdir()
    shutil.copyfile(directory / "tokenizer.json", other / "tokenizer.json")
    (other / "chat_template.jinja").write_text("{{ messages }}")
    model = shutil.copytree(directory, tmp_path / "model")
    (model / "tokenizer.json").unlink()
    engine = load_engine(str(model), tokenizer=str(other))
    assert engine.tokenizer.encode("import os") == load_engine(str(directory)).tokenizer.encode("import os")
    assert engine.model.chat is not None
    assert engine.model.chat.template == "{{ messages }}"
    with pytest.raises(ConfigError, match=r"--tokenizer \S*llama has \d+ tokens, the model has \d+: name this"):
        load_engine(str(directory), tokenizer=str(large_tokenizer(tmp_path / "llama", directory)))


def large_tokenizer(folder: Path, source: Path) -> Path:
    """A tokenizer with a token more than the model of ``source`` has."""
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    size = load_model_config(source).vocab_size
    tokenizer.add_tokens([f"<{i}>" for i in range(size + 1 - tokenizer.get_vocab_size())])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_sampling_defaults_are_the_models(
    llm: LLM, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    greedy = shutil.copytree(directory, tmp_path / "greedy")
    (greedy / "generation_config.json").write_text('{"temperature": 0, "max_new_tokens": 5, "do_sample": true}')
    defaults = load_engine(str(greedy)).model.defaults
    assert defaults == load_engine(str(directory), generation_config=str(greedy)).model.defaults
    assert load_engine(str(greedy), generation_config="none").model.defaults == NEUTRAL
    info = replace(llm.engine.model, defaults=defaults)
    monkeypatch.setattr(AsyncEngine, "model", property(lambda _: info))
    asked = SamplingParams(temperature=0.0, max_tokens=5)
    assert llm.get_default_sampling_params() == asked
    assert llm.generate(["def main():"]) == llm.generate(["def main():"], asked)


def test_a_default_length_shrinks_to_what_fits(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    context = llm.engine.model.max_model_len
    info = replace(llm.engine.model, defaults=SamplingDefaults(max_tokens=context, temperature=0.0))
    monkeypatch.setattr(AsyncEngine, "model", property(lambda _: info))
    prompt = [5] * (context - 3)
    (answer,) = llm.generate([prompt])
    assert answer == llm.generate([prompt], SamplingParams(max_tokens=3, temperature=0.0))[0]
    with pytest.raises(RequestRefusedError, match=str(context)):
        llm.generate([[5] * context])
    with pytest.raises(RequestRefusedError, match="max_tokens"):
        llm.generate([prompt], SamplingParams(max_tokens=4))


def test_an_embedding_has_as_many_numbers_as_wanted(llm: LLM) -> None:
    whole, part = llm.embed(["import os"]), llm.embed(["import os"], dimensions=3)
    assert part.shape == (1, 3)
    assert part == pytest.approx(whole[:, :3] / np.linalg.norm(whole[:, :3]), abs=1e-6)
    assert llm.embed([], dimensions=3).shape == (0, 3)
    for bad in (0, whole.shape[1] + 1):
        with pytest.raises(ValueError, match="dimensions must be between 1 and"):
            llm.embed(["import os"], dimensions=bad)
    with pytest.raises(RequestRefusedError, match="prompt"):
        llm.embed(["a", [1] * 600])


def test_the_package_exports_what_the_docs_show() -> None:
    assert jaxgen.LLM is LLM
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = jaxgen.no_such_name


def test_a_random_default_says_that_it_is(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxgen.assembly.find_model.default_model", lambda: directory)
    toy, named = load_engine().model, load_engine(str(directory)).model
    assert "random" in toy.note
    assert toy.embedded
    assert (named.note, named.embedded) == ("", False)


def test_a_checkpoint_is_computed_in_what_is_fast_and_exact(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """bfloat16 where nothing computes it: the same values in float32, and a line that says so."""
    caplog.set_level(logging.INFO, "jaxgen")
    narrow = tmp_path / "bfloat16"
    convert(str(directory), narrow, dtype="bfloat16", progress=False)
    caplog.clear()
    old, new = DeviceInfo("cpu", "old", 2), DeviceInfo("cpu", "new", 2, ("avx512_bf16",))
    _, own = find_model(str(narrow), "auto", "auto", new)
    _, asked = find_model(str(narrow), "bfloat16", "auto", old)
    assert own.dtype == asked.dtype == "bfloat16"
    assert not caplog.records
    _, wide = find_model(str(narrow), "auto", "xla", old)
    assert wide.dtype == "float32"
    assert "float32" in caplog.text
    values, exact = load_params(narrow, own, progress=False), load_params(narrow, wide, progress=False)
    for name, array in exact.items():
        assert array.dtype == np.float32
        assert np.array_equal(array, np.asarray(values[name], np.float32)), name


def test_the_device_is_described() -> None:
    device = device_info()
    assert device.is_cpu
    assert device.num_cores >= 1
